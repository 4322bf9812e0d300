#!/usr/bin/env python3
"""Compares flp.jax on this machine's GPU with the formula in JAX: numbers, times and memory.

    FLP_LIBRARY=build/release/lib/libflp.so python3 tests/gpu/jax_check.py --json tests/gpu/evidence/jax.json
    ... --cpu       without a GPU, at small sizes: to try the script

  passes   forward (logprob), training (logprob, entropy and the gradients of hidden and weight) and frozen (the same
           without the weight's gradient) of linear_logprob; divergence (jsd from the head whose rows and hidden states
           are those of others, and the gradients of hidden and weight), each as one jitted program of flp and of the
           formula: scores in the operands' dtype, log_softmax in float32. `error` is against the formula in float32
           with exact products, a few rows at a time: nats of values, relative L2 of gradients, which must not be above
           `limit`
  memory   `planned_bytes`: what XLA plans for a program beside its operands: results and temporaries, flp's workspace
           among them. `peak_bytes`: the allocator's peak above the operands while it ran, where the platform counts it;
           the peaks of flp are taken first, as one cannot be reset
  cases    tests/install/jax_cases.py in another process, where the tree has it

Times are medians of rounds in turn, in ms. Exit status 1 if anything failed, 2 without jax or a GPU.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "runtime" / "python"))

CASES = TREE / "tests/install/jax_cases.py"
FULL = {"rows": 4096, "vocab": 151936, "hidden": 4096, "dtype": "bfloat16", "rounds": 7}
TINY = {"rows": 48, "vocab": 1000, "hidden": 64, "dtype": "float32", "rounds": 2}
VALUE_LIMIT = 1e-4  # nats
GRAD_LIMIT = {"bfloat16": 6e-3, "float16": 1e-3, "float32": 5e-6}  # as tests/support/flp_reference.py has them
REFERENCE_ROWS = 512
ENTROPY_WEIGHT = 1e-2


def formula(hidden, weight, target):
    """logprob and entropy over scores that exist."""
    import jax
    import jax.numpy as jnp

    scores = jax.nn.log_softmax((hidden @ weight.T).astype(jnp.float32))
    chosen = jnp.take_along_axis(scores, target[:, None], 1)[:, 0]
    return chosen, -(jnp.exp(scores) * scores).sum(-1)


def ours(hidden, weight, target):
    import flp.jax

    return flp.jax.linear_logprob(hidden, weight, target, entropy=True)


def formula_of_pair(hidden, weight, teacher_hidden, teacher_weight):
    """jsd over scores that exist."""
    import jax
    import jax.numpy as jnp

    log_q, log_p = (jax.nn.log_softmax((rows @ head.T).astype(jnp.float32))
                    for rows, head in ((hidden, weight), (teacher_hidden, teacher_weight)))
    q, p = jnp.exp(log_q), jnp.exp(log_p)
    log_m = jnp.log((p + q) / 2)
    return ((p * (log_p - log_m) + q * (log_q - log_m)) / 2).sum(-1)


def our_pair(*operands):
    import flp.jax

    return flp.jax.divergence(*operands, kind="jsd").value


PAIRS = {ours: our_pair, formula: formula_of_pair}


def programs(way, target):
    """{pass: a jitted function of hidden and weight}; that of training and frozen gives values, then gradients."""
    import jax

    def loss(hidden, weight):
        logprob, entropy = way(hidden, weight, target)
        return (logprob + ENTROPY_WEIGHT * entropy).sum(), logprob

    return {"forward": jax.jit(lambda hidden, weight: way(hidden, weight, target)[0]),
            "training": jax.jit(lambda *operands: flat(jax.value_and_grad(loss, (0, 1), has_aux=True)(*operands))),
            "frozen": jax.jit(lambda *operands: flat(jax.value_and_grad(loss, (0,), has_aux=True)(*operands))),
            "divergence": jax.jit(lambda hidden, weight: of_pair(PAIRS[way], hidden, weight, hidden[::-1]))}


def of_pair(way, hidden, weight, others):
    """The divergence from the head whose rows are the others', and its gradients. others: hidden states of its rows"""
    import jax

    teacher = [jax.lax.stop_gradient(array) for array in (others, weight[::-1])]

    def loss(*operands):
        value = way(*operands, *teacher)
        return value.sum(), value

    return flat(jax.value_and_grad(loss, (0, 1), has_aux=True)(hidden, weight))


def flat(results):
    (_, values), grads = results
    return (values, *grads)


def reference(name, hidden, weight, target):
    """Values and both gradients of a pass in float32, REFERENCE_ROWS at a time."""
    import jax
    import jax.numpy as jnp

    others = hidden[::-1] if name == "divergence" else target
    with jax.default_matmul_precision("highest"):
        wide, run = weight.astype(jnp.float32), program_of_a_part(name)
        parts, total = [], jnp.zeros(weight.shape, jnp.float32)
        for start in range(0, hidden.shape[0], REFERENCE_ROWS):
            rows = slice(start, start + REFERENCE_ROWS)
            values, grad_hidden, grad_weight = run(hidden[rows].astype(jnp.float32), wide, others[rows])
            parts.append((values, grad_hidden))
            total = total + grad_weight
        return jnp.concatenate([part[0] for part in parts]), jnp.concatenate([part[1] for part in parts]), total


def program_of_a_part(name):
    import jax

    if name == "divergence":
        return jax.jit(lambda hidden, weight, others: of_pair(formula_of_pair, hidden, weight,
                                                              others.astype(hidden.dtype)))
    return jax.jit(lambda hidden, weight, target: programs(formula, target)["training"](hidden, weight))


def errors_of(name, results, want, dtype):
    """[(what, error, limit)] of the results of a pass: values, and gradients where it has them."""
    import jax.numpy as jnp

    values = name if name == "divergence" else "logprob"
    found = [(values, float(jnp.abs(results[0] - want[0]).max()), VALUE_LIMIT)]
    for name, got, exact in zip(("grad_hidden", "grad_weight"), results[1:], want[1:]):
        error = jnp.linalg.norm(got.astype(jnp.float32) - exact) / jnp.linalg.norm(exact)
        found.append((name, float(error), GRAD_LIMIT[dtype]))
    return found


def peak_bytes():
    """The allocator's peak, or None where the platform does not count."""
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


class Subject:
    """One program on given operands."""

    def __init__(self, way, name, program, operands):
        self.way, self.name, self.operands, self.samples, self.reason = way, name, operands, [], None
        self.program, self.results, self.peak, self.planned = program, None, None, None
        self.errors = []

    def prepare(self, held):
        """Compiles and runs once. held: bytes that were there before"""
        import jax

        try:
            started = time.perf_counter()
            self.program = self.program.lower(*self.operands).compile()
            self.compile_seconds = time.perf_counter() - started
            plan = self.program.memory_analysis()
            self.planned = plan and plan.temp_size_in_bytes + plan.output_size_in_bytes
            results = jax.block_until_ready(self.program(*self.operands))
            self.peak = peak_bytes() and peak_bytes() - held
            self.results = jax.device_get(results)  # or they would count in the next one's peak
        except Exception as error:  # out of memory is an answer
            self.reason = str(error).splitlines()[0][:200]

    def judge(self, want, dtype):
        results = self.results if isinstance(self.results, tuple) else (self.results,)
        self.errors = errors_of(self.name, results, want, dtype)
        self.results = None

    def sample(self):
        import jax

        started = time.perf_counter()
        jax.block_until_ready(self.program(*self.operands))
        self.samples.append(1e3 * (time.perf_counter() - started))

    def row(self):
        row = {"way": self.way, "pass": self.name, "ms": statistics.median(self.samples) if self.samples else None,
               "planned_bytes": self.planned, "peak_bytes": self.peak}
        if self.reason:
            return {**row, "reason": self.reason}
        row.update(compile_s=self.compile_seconds, errors={what: error for what, error, _ in self.errors},
                   limits={what: limit for what, _, limit in self.errors})
        if self.way == "flp":  # the formula in 16 bits is what it is
            row["failed"] = [what for what, error, limit in self.errors if not error <= limit]
        return row


def operands_of(options):
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(options.seed), 3)
    hidden = jax.random.normal(keys[0], (options.rows, options.hidden)).astype(options.dtype)
    weight = (1.5 / options.hidden**0.5 * jax.random.normal(keys[1], (options.vocab, options.hidden))).astype(
        options.dtype)
    return hidden, weight, jax.random.randint(keys[2], (options.rows,), 0, options.vocab, jnp.int32)


def measure(options):
    """-> rows; those of flp first, as the allocator's peak only grows."""
    hidden, weight, target = operands_of(options)
    held = sum(array.nbytes for array in (hidden, weight, target))
    subjects = [Subject(way, name, program, (hidden, weight)) for way, call in (("flp", ours), ("formula", formula))
                for name, program in programs(call, target).items()]
    for subject in subjects:
        subject.prepare(held)
    for of_pair in (False, True):
        name = "divergence" if of_pair else "training"
        want = reference(name, hidden, weight, target)
        for subject in subjects:
            if subject.reason is None and (subject.name == "divergence") == of_pair:
                subject.judge(want, options.dtype)
        del want
    for _ in range(options.rounds):
        for subject in subjects:
            if subject.reason is None:
                subject.sample()
    return [subject.row() for subject in subjects]


def cases():
    """What jax_cases.py says: {"passed", "skipped", "failed": names}, or None where the tree has it not."""
    if not CASES.exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cases.json"
        done = subprocess.run([sys.executable, CASES, "--json", out], env={**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(TREE / "runtime/python"), os.environ.get("PYTHONPATH", "")]),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, capture_output=True, text=True)
        if not out.exists():
            return {"failed": [(done.stdout + done.stderr)[-2000:]]}
        found = json.loads(out.read_text())
    failed = {name: why for name, why in found.items() if why and not why.startswith("skipped")}
    for name, why in failed.items():
        print("%s: %s" % (name, why), file=sys.stderr)
    return {"passed": sum(why is None for why in found.values()), "failed": sorted(failed),
            "skipped": {name: why for name, why in found.items() if why and why.startswith("skipped")}}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in FULL.items():
        parser.add_argument("--" + name, type=type(value), help="default %s, with --cpu %s" % (value, TINY[name]))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="without a GPU, at small sizes")
    parser.add_argument("--json", default="-", help="file for the record, default standard output")
    options = parser.parse_args(arguments)
    for name, value in (TINY if options.cpu else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main(arguments):
    options = parse(arguments)
    try:
        if options.cpu:
            os.environ["JAX_PLATFORMS"] = "cpu"
        import flp.jax  # noqa: F401
        import jax
    except ImportError as error:
        print("jax_check.py: %s" % error, file=sys.stderr)
        return 2
    if not options.cpu and jax.default_backend() != "gpu":
        print("jax_check.py: jax sees no GPU; --cpu tries the script without", file=sys.stderr)
        return 2
    from flp.bench import record
    found = cases()
    command = " ".join(["tests/gpu/jax_check.py", *(word.rsplit("/", 1)[-1] for word in arguments)])
    made = record.head_on(None if options.cpu else jax.devices()[0].device_kind, command)
    made.update({"jax": jax.__version__, "cases": found, "N": options.rows, "seed": options.seed})
    made.update((name, getattr(options, name)) for name in ("vocab", "hidden", "dtype", "rounds"))
    made["rows"] = measure(options)
    made["failed"] = sum(bool(row.get("failed")) or row["way"] == "flp" and "reason" in row for row in made["rows"])
    made["failed"] += len(found["failed"]) if found else 0
    record.write(made, options.json)
    for row in made["rows"]:
        print("%s %s: %s ms, %s bytes, %s" % (row["way"], row["pass"], row["ms"], row["planned_bytes"],
                                              row.get("errors") or row.get("reason")), file=sys.stderr)
    return 1 if made["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
