"""A head of random operands, on which tests run kernels that are forward and more."""
import numpy
from cpu_kernel import LOG2E, bits, kernels, matrix_map  # noqa: F401 - also for those that import this
from flpgen_tool import from_bf16, to_bf16

ROWS, VOCAB, DEPTH = 70, 1531, 72
SENTINEL = 0x7FC1         # a NaN that no kernel writes
CAP_IN = 0.11


class Case:
    """A head with random operands, of whose rows `active` have work, and what its kernels are called with."""

    def __init__(self, head, active):
        random = numpy.random.default_rng(7)
        self.head, self.active = head, active
        self.hidden = to_bf16(random.standard_normal((ROWS, DEPTH)))
        self.weight = to_bf16(random.standard_normal((VOCAB, DEPTH)) * 0.8)
        self.bias = to_bf16(random.standard_normal(VOCAB)) if head.get("bias") else None
        self.index = numpy.sort(random.permutation(ROWS)[:active]).astype(numpy.int32)
        self.target = random.integers(0, VOCAB, active).astype(numpy.int32)
        self.scale = (LOG2E * random.uniform(0.5, 2, active)).astype(numpy.float32)
        if head.get("softcap"):
            self.scale /= CAP_IN
        self.count = numpy.array([active], numpy.int32)
        self.gathered = numpy.full((ROWS, DEPTH), SENTINEL, numpy.uint16)
        padded = min(-(-active // 64) * 64, ROWS)
        self.gathered[:padded] = 0
        self.gathered[:active] = self.hidden[self.index]

    def raw(self):
        """Scores (active, VOCAB) before the scale, in double."""
        x = from_bf16(self.hidden[self.index]).astype(float) @ from_bf16(self.weight).astype(float).T
        return x if self.bias is None else x + from_bf16(self.bias)

    def scores(self):
        """t and 1 - tanh² (active, VOCAB) in double; without softcap 1."""
        x = self.raw()
        if not self.head.get("softcap"):
            return self.scale[:, None] * x, numpy.ones_like(x)
        return self.scale[:, None] * numpy.tanh(CAP_IN * x), numpy.cosh(CAP_IN * x)**-2

    def arguments(self, tile, vocab, part, zy):
        """Parameters of forward and forward_map alike, without those that the entry lacks."""
        rows = tile["rows"] * max(tile["cluster"], 1)
        own = {"hidden": self.hidden, "hidden_stride": DEPTH, "weight": self.weight, "weight_stride": DEPTH,
               "index": self.index, "bands": -(-ROWS // rows), "groups": -(-vocab // tile["unit_columns"])}
        if tile["cluster"]:
            boxes = tile["rows"], tile["columns"] // tile["cluster"]
            own = {"hidden_map": matrix_map(self.hidden, boxes[0]), "gathered_map": matrix_map(self.gathered, boxes[0]),
                   "weight_map": matrix_map(self.weight[:vocab], boxes[1]), "turn": numpy.zeros(1, numpy.int32), "n": ROWS}
        return {**own, "bias": self.bias, "local_target": self.target, "scale": self.scale, "count": self.count,
                "cap_in": CAP_IN, "depth": DEPTH, "vocab_valid": vocab, "row_end": ROWS, "part": part, "capacity": ROWS,
                "zy": zy}


def run(made, tile, case, name, vocab, **more):
    """Partials (groups, 3, active) and target scores of one launch. more: of its arguments, those that are not the case's"""
    groups = -(-vocab // tile["unit_columns"])
    part, zy = numpy.full((groups, 3, ROWS), 7.5, numpy.float32), numpy.full(ROWS, 7.5, numpy.float32)
    arguments = {**case.arguments(tile, vocab, part, zy), **more}
    grid = 2 * tile["cluster"] if tile["cluster"] else arguments["bands"] * arguments["groups"]
    made[name + ("_map" if tile["cluster"] else "")].named(grid, **arguments)
    return part, zy


def beside_forward(folder, arch, case, kind, more, chunks=((0, ROWS),), **tune):
    """(part, zy) of forward and of a kernel that is forward and more, whose other arguments are more. chunks: of rows, a
    launch each"""
    plain = kernels(folder, kind="forward", arch=arch, **case.head)
    made = kernels(folder, kind=kind, arch=arch, **case.head, **tune)
    found = []
    for begin, end in chunks:
        both = []
        for (kernel, shape), name, own in ((plain, "forward", {}), (made, kind, more)):
            maps = {"gathered_map": matrix_map(case.gathered[begin:], shape["rows"])} if shape["cluster"] else {}
            both.append(run(kernel, shape, case, name, VOCAB, row_begin=begin, row_end=end, **maps, **own))
        found.append(both)
    return found
