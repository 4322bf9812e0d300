#!/usr/bin/env python3
"""Installs the wheels in a clean virtual environment of a machine with a GPU, and runs what they carry: no tree needed.

    python3 tests/gpu/wheel_check.py --json tests/gpu/evidence/wheel.json build/wheel/dist/*.whl

The environment sees this Python's torch and jax, has no network and no FLP_ setting but a cache of its own. Rows, each
in a process of its own, from the import on:

  command  flpgen --version and doctor
  jit      a head that no pack has: its kernels are generated; logprob and gradients beside float32
  pack     the head of a pack, V = 151936 and D = 4096, where no generator can be opened: rung tuned
  jax      flp.jax.linear_logprob under jit, with gradients, beside float32

`error`: nats of logprob, relative L2 of gradients; a row fails above `limit`. Exit status 1 if one failed. Standard
library, and in the environment torch and jax.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 6e-3  # of gradients in bf16; of values 1e-3 nats

TORCH = """
import json, os, sys, time
start = time.perf_counter()
import torch, flp
imported = time.perf_counter()
n, vocab, hidden = map(int, sys.argv[1:])
torch.manual_seed(0)
h = torch.randn(n, hidden, device="cuda", dtype=torch.bfloat16).requires_grad_()
w = (1.5 / hidden ** 0.5 * torch.randn(vocab, hidden, device="cuda")).to(torch.bfloat16).requires_grad_()
y, g = torch.randint(vocab, (n,), device="cuda"), torch.randn(n, device="cuda")
torch.cuda.synchronize()
begun = time.perf_counter()
logprob = flp.linear_logprob(h, w, y)
logprob.backward(g)
torch.cuda.synchronize()
took = time.perf_counter() - begun
a, b = h.detach().float().requires_grad_(), w.detach().float().requires_grad_()
want = torch.log_softmax(a @ b.T, -1).gather(1, y[:, None])[:, 0]
want.backward(g)
far = lambda got, exact: ((got.float() - exact).norm() / exact.norm()).item()
info = flp.explain(h, w, y)
print(json.dumps({"rung": info.rung, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                  "import_s": imported - start, "first_step_s": took, "package": os.path.dirname(flp.__file__),
                  "error": {"logprob": (logprob - want).abs().max().item(), "grad_hidden": far(h.grad, a.grad),
                            "grad_weight": far(w.grad, b.grad)}}))
"""

JAX = """
import json, sys
import jax, jax.numpy as jnp
import flp, flp.jax
n, vocab, hidden = map(int, sys.argv[1:])
one, two, three = jax.random.split(jax.random.key(0), 3)
h = jax.random.normal(one, (n, hidden)).astype(jnp.bfloat16)
w = (1.5 / hidden ** 0.5 * jax.random.normal(two, (vocab, hidden))).astype(jnp.bfloat16)
y = jax.random.randint(three, (n,), 0, vocab)

def naive(h, w):
    with jax.default_matmul_precision("highest"):
        return jnp.take_along_axis(jax.nn.log_softmax(h.astype(jnp.float32) @ w.astype(jnp.float32).T), y[:, None], 1)[:, 0]

ours, naive = (jax.jit(jax.value_and_grad(lambda h, w, way=way: (way(h, w).sum(), way(h, w))[0], (0, 1)))
               for way in (lambda h, w: flp.jax.linear_logprob(h, w, y), naive))
(value, got), (want, exact) = ours(h, w), naive(h.astype(jnp.float32), w.astype(jnp.float32))
far = lambda a, b: float(jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b))
print(json.dumps({"jax": jax.__version__, "device": jax.devices()[0].device_kind,
                  "error": {"logprob": float(abs(value - want)) / n, "grad_hidden": far(got[0], exact[0]),
                            "grad_weight": far(got[1], exact[1])}}))
"""


def run(command, environment, limit=300):
    """-> stdout of a command; its error output is the reason of a row that failed"""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, timeout=limit,
                          cwd=environment["HOME"])
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip() or "exit %d" % done.returncode)[-600:])
    return done.stdout


def row_of(case, make):
    """What make() returns, with its errors held to their limits."""
    start = time.perf_counter()
    try:
        row = make()
    except (RuntimeError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        return {"case": case, "failed": [str(error)]}
    errors = row.get("error", {})
    row["failed"] = row.get("failed", []) + [
        "%s: %g" % (name, value) for name, value in errors.items() if not value <= (1e-3 if name == "logprob" else LIMIT)]
    return {"case": case, "wall_s": time.perf_counter() - start, **row}


def expect(row, **values):
    """row, failed where a value is another one."""
    row["failed"] = ["%s: %s, expected %s" % (name, row.get(name), value) for name, value in values.items()
                     if row.get(name) != value]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="file for the record")
    parser.add_argument("wheels", nargs="+", type=Path, help="flp-*.whl and flp_packs-*.whl")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("FLP_") and key not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
        environment.update(HOME=name, XDG_CACHE_HOME=str(home / "cache"), XLA_PYTHON_CLIENT_PREALLOCATE="false")
        start = time.perf_counter()
        run([sys.executable, "-m", "venv", home / "venv"], environment)
        (site_packages,) = (home / "venv/lib").glob("python*/site-packages")
        (site_packages / "machine.pth").write_text("".join(path + "\n" for path in sys.path if path.endswith("-packages")))
        run([home / "venv/bin/pip", "install", "--quiet", "--no-index", "--no-deps", *map(Path.resolve, options.wheels)],
            environment)
        installed = time.perf_counter() - start
        python, flpgen = home / "venv/bin/python", home / "venv/bin/flpgen"

        def command():
            said = run([flpgen, "--version"], environment).splitlines()
            doctor = json.loads(run([flpgen, "doctor", "--json"], environment))
            return {"version": said, "health": doctor["health"], "gpu": doctor["devices"][0]["name"],
                    "rungs": [name for name, rung in doctor["rungs"].items() if rung["works"]]}

        def torch_case(*sizes, **more):
            row = json.loads(run([python, "-c", TORCH, *map(str, sizes)], {**environment, **more}).splitlines()[-1])
            row["package"] = os.path.relpath(row["package"], name)
            return row

        rows = [row_of("command", command),
                row_of("jit", lambda: expect(torch_case(512, 32003, 1024), rung="jit")),
                row_of("pack", lambda: expect(torch_case(512, 151936, 4096, FLP_JIT_LIBRARY="/nonexistent"), rung="tuned")),
                row_of("jax", lambda: json.loads(run([python, "-c", JAX, 512, 32003, 1024], environment).splitlines()[-1]))]
        head = json.loads(run([python, "-c", "import json, torch; from flp.bench import record; print(json.dumps("
                               "record.head('', torch.device('cuda'))))"], environment))
    head["command"] = "tests/gpu/wheel_check.py %s" % " ".join(path.name for path in options.wheels)
    head.update(install_s=round(installed, 3), failed=sum(bool(row["failed"]) for row in rows), rows=rows)
    Path(options.json).write_text(json.dumps(head, indent=1) + "\n")
    for row in rows:
        print(row["case"], "FAILED %s" % row["failed"] if row["failed"] else "passed", row.get("rung", ""))
    return 1 if head["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
