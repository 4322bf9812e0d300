"""Best columns and ranks by single kernels, in the order of runtime/launch/top.c, with lists as small as a test likes."""
import forward_case
import numpy
from cpu_kernel import kernels, matrix_map
from forward_case import CAP_IN, DEPTH

LEAF, UNIT = 768, 3072   # columns of the first slice; others begin at multiples of these


class Tops:
    """The kernels of a head on one architecture."""

    def __init__(self, folder, arch, head, **tune):
        self.arch, self.head = arch, head
        self.forward, self.tile = kernels(folder, kind="forward_top", arch=arch, **head, **tune)
        self.plain, self.plain_tile = kernels(folder, kind="forward", arch=arch, **head, **tune)
        self.top = kernels(folder, kind="top", dtype=head.get("dtype", "bf16"))[0]
        self.rows = kernels(folder, kind="rows")[0]


class Run:
    """One chunk [begin, end) of a case's active rows: what top_finish gives."""

    def __init__(self, tops, case, best, rank=True, places=1024, ends=None, begin=0, end=None):
        self.tops, self.case, self.best, self.places = tops, case, best, places
        n, self.begin, self.end = len(case.hidden), begin, end or len(case.hidden)
        self.n, chunk, self.vocab = n, self.end - begin, len(case.weight)
        self.row = {name: numpy.full(chunk, 7.5, numpy.float32) for name in ("top_low", "top_floor", "top_mark")}
        self.row |= {name: numpy.full(chunk, -9, numpy.int32) for name in ("top_count", "top_above")}
        self.lists = {"top_column": numpy.full((chunk, places), -7, numpy.int32),
                      "top_score": numpy.full((chunk, places), 7.5, numpy.float32)} if best else {}
        self.lost = numpy.full(1 + chunk, -1, numpy.int32)
        self.zy, capped = numpy.full(n, 7.5, numpy.float32), int(bool(case.head.get("softcap")))
        self.scales = {"cap_in": CAP_IN, "capped": capped}
        self.parts = -(-self.vocab // tops.tile["unit_columns"])
        self.part = numpy.full((self.parts, 3, n), 7.5, numpy.float32)
        self.range = {"row_begin": begin, "row_end": self.end}
        self.operands = {"hidden": case.hidden, "hidden_stride": DEPTH, "weight": case.weight, "weight_stride": DEPTH,
                         "bias": case.bias, "index": case.index, "depth": DEPTH}
        if rank:
            tops.top["top_target"].named(-(-chunk // 16), **self.operands, local_target=case.target, count=case.count,
                                         **self.range, zy=self.zy)
        self.targets = self.zy.copy()
        tops.top["top_begin"].named(-(-chunk // 256), local_target=case.target, scale=case.scale, count=case.count,
                                    zy=self.zy, **self.scales, **self.range, best=best, ranks=int(rank), **self.row,
                                    top_lost=self.lost)
        self.go(ends)
        self.finish()

    def go(self, ends):
        """Over slices that end there; the first of them is the sample, which the next begins with anew."""
        ends = [*(ends or []), self.vocab]
        sample = ends.pop(0) if len(ends) > 1 and self.best else 0
        if sample:
            self.slice(0, sample, 0)
            self.floor(1, 0)
        for begin, end in zip([0, *ends], ends):
            self.slice(begin, end, 0 if begin else sample)
            if self.best:
                self.floor(0, int(end == self.vocab))
        if self.best:
            segments = max(1, min(self.places // self.best, 3))
            self.tops.top["top_redo"].named(5, **self.operands, scale=self.case.scale, **self.scales,
                                            vocab_valid=self.vocab, row_begin=self.begin, best=self.best,
                                            segments=segments, **self.lists, top_places=self.places,
                                            top_count=self.row["top_count"], top_lost=self.lost)

    def slice(self, begin, end, first):
        tile, case, weight = self.tops.tile, self.case, self.case.weight[begin:end]
        if tile["cluster"]:
            own = {"weight_map": matrix_map(weight, tile["columns"] // tile["cluster"]),
                   "gathered_map": matrix_map(case.gathered[self.begin:], tile["rows"])}
        else:
            own = {"weight": weight, "bands": -(-(self.end - self.begin) // tile["rows"])}
        forward_case.run(self.tops.forward, tile, case, "forward_top", end - begin, part=self.part, zy=self.zy, **own,
                         bias=None if case.bias is None else case.bias[begin:end], **self.range, column_begin=begin,
                         top_from=first, top_places=self.places, **self.row, **self.lists)

    def floor(self, first, last):
        self.tops.top["top_floor"].named(self.end - self.begin, count=self.case.count, **self.range, best=self.best,
                                         is_first=first, is_last=last, **self.lists, top_places=self.places, **self.row,
                                         top_lost=self.lost)

    def finish(self):
        case, n, best = self.case, self.n, self.best
        self.stats = numpy.full((n, 4), 7.5, numpy.float32)
        mapped = self.tops.tile["cluster"]
        self.rows = self.end - self.begin
        self.tops.rows["combine"].named(-(-self.rows // 32), part=self.part, capacity=n, parts=self.parts,
                                        fold=4 if mapped else 1, zy=self.zy, index=case.index,
                                        local_target=case.target, scale=case.scale, count=case.count, **self.range,
                                        **self.scales, stats=self.stats, error_word=numpy.zeros(1, numpy.int32))
        self.ids = numpy.full((n, best), -5, numpy.int64)
        self.logprob = numpy.full((n, best), 7.5, numpy.float32)
        self.rest, self.rank = numpy.full(n, 7.5, numpy.float32), numpy.full(n, -5, numpy.int32)
        outputs = {"top_ids": self.ids, "top_logprob": self.logprob, "top_rest": self.rest} if best else {}
        self.tops.top["top_finish"].named(self.rows, count=case.count, index=case.index, local_target=case.target,
                                          **self.range, best=best, vocab_valid=self.vocab, vocab_offset=1000,
                                          **self.lists, top_places=self.places, top_count=self.row["top_count"],
                                          top_above=self.row["top_above"], stats=self.stats, **outputs,
                                          rank=self.rank)


def plain(tops, case):
    """Partials and target scores of forward."""
    return forward_case.run(tops.plain, tops.plain_tile, case, "forward", len(case.weight))
