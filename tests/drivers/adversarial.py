#!/usr/bin/env python3
"""Hostile operands through forward, combine, backward and step, beside float64: see --help.

Kernels of sm_80 and sm_90a run on the CPU (tests/simt); rung eager runs as it is. A try is one problem
(adversarial_case.py) judged by its bounds (adversarial_truth.py); outputs are poisoned, so what is not written, or is
written between rows, is found.
"""
import argparse
import ctypes
import os
import sys
from collections import Counter
from pathlib import Path

import numpy

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "tests" / "simt"), str(Path(__file__).parent)]

import adversarial_case as cases  # noqa: E402
import adversarial_truth as truths  # noqa: E402
import emulator  # noqa: E402
from adversarial_select import Select  # noqa: E402
from emulator import BUILD  # noqa: E402
from adversarial_case import Shape, widened  # noqa: E402

KERNELS = {"sm_80": "8.0", "sm_90a": "9.0"}
DTYPES = {"bf16": 1, "fp16": 2, "fp32": 3}
POISON = 0xFF
CLIP, BETA, BONUS = 0.2, 0.04, 0.01  # of the step's loss
# What kernels are compiled for; the first SHORT of them in a short run. Together: every dtype, entropy, bias, softcap,
# ids, gradients in either dtype, accumulation, chunks of rows and of columns, both ways of a step.
SHAPES = (
    Shape(vocab=257, depth=24, accumulate=True, chunk_vocab=128),
    Shape(vocab=33, depth=16, dtype="fp16", grads=3, bias=False, wide=False, per_row=False, narrow_ids=True),
    Shape(vocab=130, depth=40, softcap=20, loss=True, mode=6, chunk_rows=8),
    Shape(vocab=2, depth=8, dtype="fp32", entropy=1, grads=7),
    Shape(vocab=1000, depth=64, softcap=1e-3, entropy=2, grads=1, chunk_rows=8),
    Shape(vocab=3, depth=8, softcap=1e6, entropy=0, bias=False, grads=2, wide=False),
    Shape(vocab=513, depth=16, dtype="fp16", softcap=1, entropy=2, grads=7),
    Shape(vocab=200, depth=32, dtype="fp32", loss=True, grads=3, narrow_ids=True, softcap=30),
    Shape(vocab=900, depth=16, loss=True, mode=3, chunk_rows=16, wide=False, grads=7),
)
SHORT = 3


def set_environment(rung, folder):
    """The stand-ins that run kernels on the CPU."""
    os.environ["FLP_LIBRARY"] = str(BUILD / "lib" / "libflp.so")
    for name in ("FLP_FORCE", "FLP_STRICT", "FLP_BUDGET", "FLP_CACHE_PATH", "FLP_PACK_KEYS"):
        os.environ.pop(name, None)
    if rung == "eager":
        return
    os.environ.update(emulator.environment(folder, KERNELS[rung]))


class Failed(Exception):
    """A try that went wrong; the text says how."""


class Library:
    """libflp, and memory that its device reads: the host's, or the stand-in's."""

    def __init__(self, rung):
        self.c = c = emulator.bindings()
        self.rung, self.lib, self.plans = rung, c.get(), {}
        self.arena, self.taken = ctypes.c_void_p(), []
        self.check(self.lib.flp_arena_create(c.DEVICE_HOST if rung == "eager" else 0, self.arena))

    def check(self, status):
        if status:
            raise Failed(f"status {status}: {self.lib.flp_error_detail().decode()}")

    def array(self, count, dtype, fill=POISON):
        """Of exactly so many elements; given back by forget()."""
        size, start = count * numpy.dtype(dtype).itemsize, ctypes.c_void_p()
        self.check(self.lib.flp_arena_take(self.arena, max(size, 1), None, start))
        self.taken.append(start)
        block = numpy.frombuffer((ctypes.c_uint8 * size).from_address(start.value), numpy.uint8)
        block[...] = fill
        return block.view(dtype)

    def forget(self):
        for start in self.taken:
            self.check(self.lib.flp_arena_give_back(self.arena, start, None))
        self.taken.clear()

    def copied(self, x, dtype):
        out = self.array(numpy.size(x), dtype)
        out[...] = numpy.ravel(x)
        return out

    def matrix(self, x, pad, dtype=None):
        """(rows, columns) with `pad` poisoned elements between rows; stored as it is."""
        rows, columns = x.shape
        out = self.array(rows * (columns + pad), x.dtype)
        out.reshape(rows, columns + pad)[:, :columns] = x
        return out

    def plan(self, shape):
        if shape not in self.plans:
            self.plans[shape] = self.make_plan(shape)
        return self.plans[shape]

    def make_plan(self, shape):
        c, spec, options, plan = self.c, self.c.new_spec(), self.c.new_options(), ctypes.c_void_p()
        spec.dtype, spec.vocab, spec.hidden, spec.entropy = DTYPES[shape.dtype], shape.vocab, shape.depth, shape.entropy
        spec.grads, spec.has_bias, spec.softcap = shape.grads & (7 if shape.bias else 3), shape.bias, shape.softcap
        spec.per_row_temperature, spec.accumulate_grad_weight = shape.per_row, shape.accumulate
        spec.target_dtype = c.DTYPE_INT32 if shape.narrow_ids else c.DTYPE_INT64
        if shape.wide:
            spec.grad_hidden_dtype = spec.grad_weight_dtype = c.DTYPE_FP32
        if shape.loss:
            self.program, size = ctypes.create_string_buffer(c.LOSS_BYTES_MAX), ctypes.c_size_t()
            self.check(self.lib.flp_loss_builtin_bytes(cases.LOSS.encode(), self.program, c.LOSS_BYTES_MAX, size))
            spec.loss, spec.loss_bytes = ctypes.addressof(self.program), size.value
        options.chunk_rows = shape.chunk_rows
        if self.rung == "eager":
            options.device, options.threads = c.DEVICE_HOST, 2
        else:
            options.rung, options.mode = c.RUNG_JIT, shape.mode
            options.chunk_vocab = shape.chunk_vocab
        self.check(self.lib.flp_plan_create(spec, options, plan))
        return plan


class Try:
    """Calls of one case."""

    def __init__(self, library, case):
        self.l, self.case, self.shape, self.c = library, case, case.shape, library.c
        self.truth, self.plan, self.values = truths.Truth(case, library.rung != "eager"), library.plan(case.shape), 0
        stored = lambda x: cases.narrowed(x, case.shape.dtype)[0]  # noqa: E731
        ids = numpy.int32 if self.shape.narrow_ids else numpy.int64
        self.hidden = library.matrix(stored(case.hidden), case.pads["hidden"])
        self.weights = [library.matrix(stored(part), case.pads["weight"])
                        for part in numpy.split(case.weight, case.shards)]
        self.biases = [library.copied(part, part.dtype) for part in numpy.split(stored(case.bias), case.shards)]
        self.target = library.copied(case.target, ids)
        self.temperature = library.copied(case.temperature, numpy.float32)
        self.rows = None if case.rows is None else library.copied(case.rows, numpy.int32)

    def args(self, which, shard=0):
        case, shape, args = self.case, self.shape, self.c.new_args()
        setattr(args, "pass", which)
        args.n, args.scale, args.ignore_index = case.n, case.scale, case.ignore
        args.hidden, args.weight = self.hidden.ctypes.data, self.weights[shard].ctypes.data
        args.hidden_stride, args.weight_stride = (shape.depth + case.pads[name] for name in ("hidden", "weight"))
        args.bias = self.biases[shard].ctypes.data if shape.bias else None
        args.target = self.target.ctypes.data
        if shape.per_row:
            args.temperature_rows = self.temperature.ctypes.data
        else:
            args.temperature = float(case.temperature[0])
        if self.rows is not None:
            args.rows, args.row_count = self.rows.ctypes.data, len(self.rows)
        args.vocab_offset, args.vocab_total = shard * shape.vocab, case.total
        args.vocab_valid = case.valid if shard == case.shards - 1 else shape.vocab
        return args

    def run(self, args, counted):
        layout, which = self.c.new_layout(), getattr(args, "pass")
        self.l.check(self.l.lib.flp_plan_layout(self.plan, which, self.case.n, 1 << 40, layout))
        size = layout.smallest_bytes if self.case.tight and layout.smallest_bytes else layout.bytes
        workspace = self.l.array(size, numpy.uint8)
        args.workspace, args.workspace_bytes = (workspace.ctypes.data, size) if size else (None, 0)
        call = self.l.lib.flp_step if which == self.c.PASS_STEP else self.l.lib.flp_execute
        self.l.check(call(self.plan, args))
        status, detail = self.l.lib.flp_plan_check(self.plan, None), self.l.lib.flp_error_detail().decode()
        count = int(detail.split()[0]) if status == 11 else 0
        if status not in (0, 11) or not counted[0] <= count <= counted[1]:
            raise Failed(f"pass {which} counts {count} bad rows, not {counted[0]} to {counted[1]}: {detail}")

    def outputs(self, args, names):
        found = {}
        for name, width in names.items():
            found[name] = self.l.array(self.case.n * width, numpy.float32)
            setattr(args, name, found[name].ctypes.data)
        return found

    def row_outputs(self):
        return {"logprob": 1, "stats": 4, **({"entropy": 1} if self.shape.entropy else {})}

    def forward(self):
        """logprob, entropy, stats; through partials where there are shards."""
        case, truth, n = self.case, self.truth, self.case.n
        if case.shards == 1:
            args = self.args(self.c.PASS_FORWARD)
            out = self.outputs(args, self.row_outputs())
            self.run(args, truth.counted())
            return out
        partials = self.l.array(case.shards * n * 4, numpy.float32)
        known = int((truth.kind == truths.BAD).sum()) + truth.bad_ids()
        for shard in range(case.shards):
            args = self.args(self.c.PASS_FORWARD, shard)
            args.partial = partials.ctypes.data + shard * n * 16
            self.run(args, (known, known))
        args = self.args(self.c.PASS_COMBINE)
        args.vocab_valid = self.shape.vocab
        args.partial, args.shard_count = partials.ctypes.data, case.shards
        out = self.outputs(args, self.row_outputs())
        self.run(args, truth.counted())
        return out

    # -- comparison --

    def expect(self, what, got, want, allowed, where=None):
        got, want, allowed = (numpy.broadcast_to(x, numpy.shape(got)) for x in (got, want, allowed))
        self.values += got.size
        with numpy.errstate(invalid="ignore"):
            wrong = ~((got == want) | (numpy.abs(got - want) <= allowed) | (numpy.isnan(got) & numpy.isnan(want)))
        if wrong.any():
            at = tuple(int(i[0]) for i in numpy.nonzero(wrong))
            raise Failed(f"{what}{list(at)} is {got[at]:.9g}, in float64 {want[at]:.9g}, allowed {allowed[at]:.3g}"
                         f"{'; row ' + str(int(where[at[0]])) if where is not None else ''}")

    def compare_rows(self, out):
        truth, kind = self.truth, self.truth.kind
        wanted = {"logprob": (truth.logprob, truth.error), "entropy": (truth.entropy, truth.entropy_error)}
        for name in wanted.keys() & out.keys():
            got, (value, error) = out[name].astype(float), wanted[name]
            self.expect(f"{name} of rows left out", got[kind == truths.LEFT_OUT], 0, 0)
            for which, word in ((truths.BAD, "bad rows"), (truths.BEYOND, "rows beyond the limit"),
                                (truths.NAN, "rows with NaN")):
                self.expect(f"{name} of {word}", got[kind == which], numpy.nan, 0, numpy.nonzero(kind == which)[0])
            fine = kind == truths.VALUE
            self.expect(name, got[fine], value[fine], error[fine], numpy.nonzero(fine)[0])
            outside = got > 0 if name == "logprob" else got < 0
            if outside.any():
                raise Failed(f"{name} of row {int(numpy.argmax(outside))} is {got[outside][0]:.9g}")

    def gradient_arrays(self, args):
        """{name: (array, columns, pad)}; the weight's starts from random numbers where it is added to."""
        shape, case, found = self.shape, self.case, {}
        stored = "fp32" if shape.wide else shape.dtype
        kind = {"fp32": numpy.float32, "fp16": numpy.float16, "bf16": numpy.uint16}[stored]
        grads = shape.grads & (7 if shape.bias else 3)
        for bit, name, rows in ((1, "hidden", case.n), (2, "weight", shape.vocab)):
            if grads & bit:
                pad = case.pads[f"grad_{name}"]
                found[name] = self.l.array(rows * (shape.depth + pad), kind).reshape(rows, shape.depth + pad)
                setattr(args, f"grad_{name}", found[name].ctypes.data)
                setattr(args, f"grad_{name}_stride", shape.depth + pad)
        if grads & 4:
            found["bias"] = self.l.array(shape.vocab, cases.narrowed(case.bias[:1], shape.dtype)[0].dtype)
            args.grad_bias = found["bias"].ctypes.data
        self.start = 0
        if shape.accumulate and "weight" in found:
            start = numpy.random.default_rng(case.n).standard_normal((shape.vocab, shape.depth))
            self.start = start.astype(numpy.float32)
            found["weight"][:, :shape.depth] = self.start
        return found

    def compare_gradients(self, found, g, e, live, shard, kept):
        shape, case, kind = self.shape, self.case, self.truth.kind
        count = case.valid if shard == case.shards - 1 else shape.vocab
        for name, array in found.items():
            if name != "bias" and not (array[:, shape.depth:].view(numpy.uint8) == POISON).all():
                raise Failed(f"grad_{name}: what stands between rows was written")
        values = {name: widened(array[..., :shape.depth] if name != "bias" else array,
                                "fp32" if name != "bias" and shape.wide else shape.dtype)
                  for name, array in found.items()}
        clean = not numpy.isin(kind[live], (truths.NAN, truths.BEYOND, truths.UNKNOWN)).any() and not (
            numpy.isnan(g[live]) | numpy.isnan(e[live])).any()
        known = live & ~(numpy.isnan(g) | numpy.isnan(e))
        truth = self.truth.gradients(g, e, known, shard * shape.vocab, count, kept)
        if "hidden" in values:
            got = values["hidden"]
            self.expect("grad_hidden of idle rows", got[(kind == truths.LEFT_OUT) | ~live & (kind != truths.BAD)], 0, 0)
            self.expect("grad_hidden of bad rows", got[(kind == truths.BAD) & live], numpy.nan, 0)
            lost = live & numpy.isin(kind, (truths.BEYOND,))
            self.expect("grad_hidden of rows beyond the limit", got[lost], numpy.nan, 0)
        if truth is None:
            return
        for name, got in values.items():
            value, bound = truth[name]
            stored = "fp32" if shape.wide and name != "bias" else shape.dtype
            if name == "hidden":
                rows = known & (kind == truths.VALUE)
                got, value, bound, start = got[rows], value[rows], bound[rows], 0
            elif not clean:
                continue
            else:
                is_added = name == "weight" and shape.accumulate
                self.expect(f"grad_{name} of padding", got[count:], self.start[count:] if is_added else 0, 0)
                got, start = got[:count], self.start[:count] if is_added else 0
            size = numpy.abs(value) + bound
            if (size >= truths.ROOM[stored]).any():
                continue
            rounding = truths.STEP[stored] * size + truths.LEAST[stored] + 2.0**-22 * numpy.abs(start)
            self.expect(f"grad_{name}", got, start + value, 1.01 * (bound + rounding))

    def backward(self, stats):
        """By the same stats, each shard its columns."""
        case, g, e = self.case, self.case.g, self.case.e
        live = ((g != 0) | (e != 0)) & (self.truth.kind != truths.LEFT_OUT)
        for shard in range(case.shards):
            args = self.args(self.c.PASS_BACKWARD, shard)
            held = [self.l.copied(x, numpy.float32) for x in (stats, g, e)]
            args.stats, args.grad_logprob = held[0].ctypes.data, held[1].ctypes.data
            args.grad_entropy = held[2].ctypes.data if self.shape.entropy == 2 else None
            found = self.gradient_arrays(args)
            self.run(args, self.truth.counted(live))
            self.compare_gradients(found, g, e, live, shard, kept=False)

    def step(self, logprob):
        """GRPO with k3 and an entropy bonus, of a policy near the one that was scored."""
        case, random = self.case, numpy.random.default_rng(case_seed(self.case))
        known = numpy.where(numpy.isfinite(logprob), logprob, 0)
        near = [numpy.float32(known + 0.1 * random.standard_normal(case.n)) for _ in range(2)]
        given = {"old_logprob": near[0], "ref_logprob": near[1], "advantage": random.standard_normal(case.n),
                 "row_weight": random.uniform(0.5, 1.5, case.n) * (random.random(case.n) < 0.8)}
        args = self.args(self.c.PASS_STEP)
        held = {name: self.l.copied(value, numpy.float32) for name, value in given.items()}
        for name, array in held.items():
            setattr(args, name, array.ctypes.data)
        parameters = (ctypes.c_double * 4)(CLIP, CLIP, BETA, BONUS)
        args.loss_parameters = parameters
        out = self.outputs(args, {"logprob": 1, "entropy": 1, "loss": 1})
        found = self.gradient_arrays(args)
        self.run(args, self.truth.counted())
        self.compare_rows(out)
        loss, g, e = judge(out["logprob"].astype(float), out["entropy"].astype(float),
                           *(held[name].astype(float) for name in given))
        kind = self.truth.kind
        loss[kind == truths.LEFT_OUT] = 0
        loss[kind == truths.BAD] = numpy.nan
        told = kind != truths.UNKNOWN
        room = 1e-6 * (1 + numpy.abs(numpy.nan_to_num(loss[told])))
        self.expect("loss", out["loss"][told].astype(float), loss[told], room)
        live = ((g != 0) | (e != 0)) & (kind != truths.LEFT_OUT)
        self.compare_gradients(found, numpy.float32(g), numpy.float32(e), live | (kind == truths.BAD), 0,
                               kept=self.l.rung != "eager" and self.shape.dtype == "bf16")

    def all(self):
        out = self.forward()
        self.compare_rows(out)
        if self.shape.grads:
            self.backward(out["stats"])
        if self.shape.loss:
            self.step(out["logprob"].astype(float))


def case_seed(case):
    return case.n * 1009 + case.valid


def judge(logprob, entropy, old, ref, a, w):
    """Losses, and their derivatives by logprob and entropy; a row of weight 0 has none."""
    with numpy.errstate(all="ignore"):
        ratio, d = numpy.exp(logprob - old), ref - logprob
        bounded = numpy.clip(ratio, 1 - CLIP, 1 + CLIP)
        loss = w * (-numpy.minimum(ratio * a, bounded * a) + BETA * (numpy.exp(d) - d - 1) - BONUS * entropy)
        g = w * (numpy.where(bounded * a < ratio * a, 0, -ratio * a) + BETA * (1 - numpy.exp(d)))
    return numpy.where(w == 0, 0, loss), numpy.where(w == 0, 0, g), -BONUS * w


def random_shape(random):
    """Of the rung that compiles nothing."""
    pick, one_in = cases.pick, cases.one_in
    dtype, bias, grads = pick(random, "bf16", "fp16", "fp32"), not one_in(random, 2), int(random.integers(0, 8))
    loss = bool(one_in(random, 3))
    wide = bool(one_in(random, 2))
    return Shape(vocab=int(pick(random, 2, 3, 33, 257, 1000)), depth=int(8 * random.integers(1, 9)), dtype=dtype,
                 bias=bias, entropy=2 if loss else int(random.integers(0, 3)), grads=grads if bias else grads & 3,
                 softcap=float(pick(random, 0, 0, 1e-3, 1, 30, 1e6)), per_row=not one_in(random, 3), wide=wide,
                 accumulate=bool((wide or dtype == "fp32") and grads & 2 and one_in(random, 2)),
                 narrow_ids=bool(one_in(random, 2)), loss=loss, chunk_rows=int(pick(random, 0, 0, 1, 5)))


def run_try(library, rung, seed, number, shapes):
    random = numpy.random.default_rng([seed, number])
    shape = random_shape(random) if rung == "eager" else shapes[number % len(shapes)]
    case = cases.draw(shape, random)
    this = Try(library, case)
    try:
        this.all()
    except Failed as failure:
        raise Failed(f"{failure}\n  {shape}\n  n {case.n} scale {case.scale} shards {case.shards} valid {case.valid} "
                     f"ignore {case.ignore} {' '.join(case.words)}\n  kinds {this.truth.kind.tolist()}") from None
    library.forget()
    chosen = Select(library, random, number, Failed)
    chosen.run()
    library.forget()
    this.values += chosen.values
    return this


def main():
    parser = argparse.ArgumentParser(description="Hostile operands beside float64, through every pass.")
    parser.add_argument("--rung", choices=("eager", *KERNELS), default="eager", help="eager, or kernels on the CPU")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first try: repeats one with --tries 1")
    parser.add_argument("--shapes", choices=("short", "all"), default="all", help="how many kernels are compiled")
    parser.add_argument("--folder", type=Path, default=BUILD / "tests" / "adversarial", help="of its cache")
    options = parser.parse_args()
    folder = options.folder / options.rung
    folder.mkdir(parents=True, exist_ok=True)
    set_environment(options.rung, folder)
    library, count = Library(options.rung), Counter()
    shapes = SHAPES[:SHORT] if options.shapes == "short" else SHAPES
    for number in range(options.first, options.first + options.tries):
        try:
            done = run_try(library, options.rung, options.seed, number, shapes)
        except Failed as failure:
            print(f"adversarial.py: try {number}: {failure}\n  repeat: tests/drivers/adversarial.py "
                  f"--rung {options.rung} "
                  f"--seed {options.seed} --shapes {options.shapes} --first {number} --tries 1", file=sys.stderr)
            return 1
        count.update(tries=1, rows=done.case.n, values=done.values, steps=int(done.shape.loss))
        for kind, word in enumerate(("left out", "bad", "beyond", "NaN", "unknown", "compared")):
            count[word] += int((done.truth.kind == kind).sum())
    print(f"adversarial.py: {options.rung}, seed {options.seed}: "
          + ", ".join(f"{count[word]} {word}" for word in count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
