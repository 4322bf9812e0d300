#!/usr/bin/env python3
"""Which kernels a record ran, and whether this tree's generator still makes them, to the byte.

    python3 tests/gpu/kernels.py --flpgen build/release/bin/flpgen RECORD...           compare with what records hold
    python3 tests/gpu/kernels.py --flpgen build/release/bin/flpgen --stamp RECORD...   write what this generator makes
    python3 tests/gpu/kernels.py --flpgen NEW --before OLD --restamp RECORD...         carry records over a change

A record holds "sources_hash", the hash of the generator and templates that it was made with, and "kernels": for each
kind and architecture how many kernels it ran and the SHA-256 over the SHA-256s of their PTX, sorted. A record is current
while one of the two is the tree's: equal hashes need no look at the kernels, and equal kernels need no equal hash.

--stamp is for new records: it writes "kernels", and refuses a record whose hash is not the generator's.
--restamp is for records without "kernels" or with an older hash. OLD is the flpgen of the commit that made the record
(its hash must be the record's). Where OLD and NEW make the same bytes, the record gets NEW's hash and the kernels; the
hash that it had stays in "sources_hash_before". Any other record is left as it is.

Records of studies and of Python scripts but portable.py name no specification here; their hash alone shows whether they
are current.
Exit status: 0 all current, or written; 1 a record is not; 2 wrong usage.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import portable  # noqa: E402

ARCH = "sm_90a"  # of every GPU that records are made on
GENERIC = "--generic"
# Options of check and bench that do not change a kernel, with the number of their values.
RUN_TIME = {"--rows": 1, "--budget": 1, "--masked": 1, "--mode": 1, "--rung": 1, "--loss-parameter": 1, "--json": 1,
            "--rounds": 1, "-q": 0, "--quiet": 0, "--all": 0, "--quick": 0, "--large": 0, "--concurrent": 0, "--jobs": 1,
            "--seed": 1, "--burst-ms": 1, "--effort": 1, "--out": 1, "--record": 1, "--save": 0, "--peers": 1,
            "--workspace": 1, "--data": 1}
KEEPING_MODES = ("save", "S", "direction", "D")  # that make kernels of saved exponentials
RENAMED = {"--accumulate": ["--accumulate-grad-weight"], "--frozen": ["--grad", "hidden"]}  # of flp.bench
GRADS = {"h": "hidden", "w": "weight", "b": "bias", "A": "lora_a", "B": "lora_b"}


# ---- which specifications a record ran: texts of options for `flpgen gen` ----

def of_command(command):
    """The specification of a command of flpgen or of flp.bench; one a value of --entropy and --loss of the latter."""
    words, kept = [], []
    for part in shlex.split(command):
        words += part.split("=", 1) if part.startswith("--") else [part]
    words = words[next(i for i, word in enumerate(words) if word.startswith("--")):]
    while words:
        word = words.pop(0)
        if word in RUN_TIME:
            keeps = word == "--save" or word == "--mode" and words[0] in KEEPING_MODES
            del words[:RUN_TIME[word]]
            kept += ["--keep"] if keeps else []
        else:
            kept += RENAMED.get(word, [word])
    return kept


def variants(words):
    """Options whose value is a list in flp.bench, one value each."""
    for name in ("--entropy", "--loss"):
        if name in words and "," in words[words.index(name) + 1]:
            at = words.index(name) + 1
            return [text for value in words[at].split(",") for text in variants([*words[:at], value, *words[at + 1:]])]
    return [" ".join(words)]


def with_and_without(words):
    """A benchmark with a tail, several targets without a loss over them, best columns, ranks or statistics runs the
    same without, too."""
    plain = list(words)
    for option, width in (("--tail", 2), ("--targets", 2), ("--topk", 2), ("--rank", 1), ("--statistics", 1)):
        if option in plain and not (option == "--targets" and "--loss" in plain):
            at = plain.index(option)
            plain = plain[:at] + plain[at + width:]
    return [words] if plain == words else [words, plain]


def of_check(row):
    """The specifications of one row of `flpgen check`."""
    specs = [GENERIC] * ("generic" in row["rungs"])
    if set(row["rungs"]) <= {"eager", "generic"}:
        return specs
    for op, sign in (("scale", "scale: "), ("loss", "loss: "), ("diverge", ": grad_scores")):
        if any(sign in output for output in (*row["outputs"], *row["exact"])):
            return specs + OF_OPS[op]
    _, vocab, hidden = map(int, row["shape"].split("x"))
    words = dict(word.partition("=")[::2] for word in row["options"].split())
    shards = int(words.get("shards", 1))
    options = ["--vocab", -(-vocab // shards), "--dtype", row["dtype"]]
    options += ["--hidden", hidden] if hidden else ["--op", "select"]
    if "entropy" in words or "entropy+backward" in words:
        options += ["--entropy", "backward" if hidden and "entropy+backward" in words else "forward"]
    if "grads" in words and hidden:
        options += ["--grad", ",".join(GRADS[letter] for letter in words["grads"])]
    options += ["--bias"] * ("bias" in words) + ["--keep"] * (words.get("mode") in KEEPING_MODES)
    for word, option in (("softcap", "--softcap"), ("align", "--alignment"), ("loss", "--loss"), ("kept", "--keep-set"),
                         ("tail", "--tail"), ("targets", "--targets"), ("lora", "--lora-rank"), ("mixed", "--mixed"),
                         ("hidden", "--hidden-dtype"), ("weight", "--weight-dtype")):
        options += [option, words[word]] if word in words else []
    options += ["--topk", 1] * ("topk" in words)  # kernels are the same for any, and a shard may have few columns
    options += [f"--{word}" for word in ("rank", "statistics") if word in words]
    if "accumulate" in words:
        options.append("--accumulate-grad-weight")
    elif row["case"].endswith("fp32-grads"):
        options += ["--grad-hidden-dtype", "fp32", "--grad-weight-dtype", "fp32"]
    options += ["--target-dtype", "int32"] if row["case"] == "int32" else []
    return [*specs, " ".join(map(str, options))]


def of_sanitized(command):
    """Those of one command that ran under compute-sanitizer."""
    if "--rung generic" in command:
        return [GENERIC]
    op = re.search(r"--op (\w+)", command)
    return OF_OPS[op[1]] if op else [" ".join(of_command(command))]


def of_divergence(row):
    """Those of a row of flp.bench --op diverge; with a payload the student runs as a head does."""
    if not row["payload"]:
        policy = [f"--op loss --vocab 2 --dtype fp32 --loss {row['policy']}"] if row.get("policy") else []
        return [f"--op diverge --vocab {row['V']} --dtype {row['dtype']} --loss {row['loss']}", *policy]
    grads = " --grad hidden --grad-hidden-dtype fp32 --keep" if row["grads"] else ""
    return [f"--vocab {row['V']} --hidden {row['D']} --dtype {row['dtype']} --entropy forward{grads}"]


def of_tuning(row, spec):
    """The kernels that a row of a search timed or chose."""
    head = ["--vocab", spec["vocab"], "--hidden", spec["hidden"], "--dtype", spec.get("dtype", "bf16")]
    if spec.get("training") or spec.get("grads", "none") != "none":
        head += ["--entropy", "backward", "--grad", "hidden,weight"]
    elif spec.get("entropy", "none") != "none":
        head += ["--entropy", spec["entropy"]]
    head += [word for name in ("softcap", "arch") if spec.get(name) for word in (f"--{name}", spec[name])]
    head = " ".join(map(str, head))
    if "tune" in row:
        return [f"{head} --tune {row['kind']}:{row['tune']}"]
    chosen = ";".join(f"{kind}:{kernel['chosen']}" for kind, kernel in row["kernels"].items()
                      if kind != "layout" and kernel["chosen"] not in ("own", ""))
    return [head, f"{head} --tune {chosen}"] if chosen else [head]


def specs_of(record):
    """What a record ran, as options of `flpgen gen`, sorted; [] where it names none."""
    command, rows, specs = record["command"], record.get("rows", []), []
    if rows and "variant" in rows[0]:
        return []  # a study of templates that are not in the tree
    if rows and rows[0].get("op") == "diverge":
        return sorted({text for row in rows for text in of_divergence(row)})
    if command.startswith(("flpgen bench", "python -m flp.bench")):
        specs = [text for words in with_and_without(of_command(command)) for text in variants(words)]
    elif command.startswith("flpgen check"):
        arch = re.search(r" --arch \S+", command)
        specs = [text + (arch[0] if arch and text != GENERIC else "") for row in rows for text in of_check(row)]
    elif "--only sanitize" in command:
        specs = [text for row in rows for text in of_sanitized(row["command"])]
    elif "--only tilings" in command:
        specs = [f"{text}{' --arch ' + row['arch'] if 'arch' in row else ''} --tune {row['tune']}"
                 for row in rows for text in TILED]
    elif command.startswith("tests/gpu/portable.py"):
        specs = [" ".join(of_command(portable.command_of(row["problem"]))) for row in rows]
    elif "--only tune" in command:
        specs = [text for row in rows for text in of_tuning(row, record["spec"])]
    elif rows and "kernels" in rows[0]:
        specs = [text for row in rows for text in of_tuning(row, row)]
    return sorted(set(specs))


# `flpgen check --op` of these has cases of its own.
ELEMENTS = {"bf16": 2, "fp16": 2, "fp32": 4}
LOSSES = "cispo dapo dr_grpo entropy grpo k1 k2 k3 nll ppo reinforce token_entropy".split()
DIVERGENCES = "forward_kl reverse_kl jsd skew_kl total_variation lk neg_log_acceptance".split()
OF_OPS = {
    "loss": sorted(f"--op loss --vocab 2 --dtype fp32 --entropy forward --loss {loss}" for loss in LOSSES),
    "scale": sorted(f"--op scale --vocab 1531 --dtype {dtype} --alignment {alignment}"
                    for dtype, element in ELEMENTS.items() for alignment in (element, 16)),
    "diverge": sorted(f"--op diverge --vocab 1531 --dtype {dtype} --alignment {alignment} --loss {loss}"
                      for dtype in ELEMENTS for loss, alignment in (*((name, 16) for name in DIVERGENCES), ("lk", 4))),
}

# `flpgen check --all --dtype bf16` has many cases: one specification for each branch of a template.
TILED = [f"--vocab 1531 --hidden 72 --dtype bf16 {options}" for options in (
    "--entropy backward --grad hidden,weight", "--entropy backward --grad hidden,weight,bias --bias",
    "--entropy backward --grad hidden,weight,bias --bias --softcap 30")]


# ---- what a generator makes of them ----

class Generator:
    """One flpgen. A kernel's digest is the SHA-256 of its PTX."""

    def __init__(self, flpgen):
        self.flpgen = str(Path(flpgen).resolve())
        self.made = {}
        self.sources_hash = self.read(["gen", "--vocab", "2", "--hidden", "8"])["kernels"][0]["sources"]

    def read(self, words):
        env = {name: value for name, value in os.environ.items() if not name.startswith("FLP_")}
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([self.flpgen, *words, "--json"], env={**env, "FLP_CACHE_DIR": cache}, text=True,
                                  capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join([self.flpgen, *words])}: exit {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def kernels(self, spec):
        """{(kind and architecture, digest)} of one specification."""
        if spec not in self.made:
            words = [GENERIC, "--install-cache"] if spec == GENERIC else ["--arch", ARCH, *spec.split()]
            document = self.read(["gen", *words, "--emit", "ptx"])
            self.made[spec] = {(f"{kernel['key']['kind']} {kernel['key']['arch']}",
                                hashlib.sha256(kernel["ptx"].encode()).hexdigest()) for kernel in document["kernels"]}
        return self.made[spec]

    def digests(self, specs):
        """{kind and architecture: {"kernels": number, "sha256": 64 digits}}, what records hold as "kernels"."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = set().union(*pool.map(self.kernels, specs))
        groups = {}
        for name, digest in sorted(made):
            groups.setdefault(name, []).append(digest)
        return {name: {"kernels": len(digests), "sha256": hashlib.sha256("".join(digests).encode()).hexdigest()}
                for name, digests in groups.items()}


def changed(then, now):
    """Names of the kernels that two results of digests do not have alike."""
    return sorted(name for name in {*now, *then} if now.get(name) != then.get(name))


def differences(record, generator):
    """Names of the kernels that a record ran and the generator makes otherwise today."""
    return changed(record["kernels"], generator.digests(specs_of(record)))


# ---- the command ----

def write(path, before, sources_hash, kernels):
    """Changes a record's lines on its sources, and no others. before: older hashes"""
    text = re.sub(r'^ "(sources_hash_before|kernels)": [\[{].*\n(?:  .*\n)*', "", path.read_text(), flags=re.M)
    text = re.sub(r'"sources_hash": "[0-9a-f]+"', f'"sources_hash": "{sources_hash}"', text, count=1)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(group)}" for name, group in kernels.items())
    said = f' "sources_hash_before": {json.dumps(before)},\n' if before else ""
    text, count = re.subn(r'^ "(rows|results)": ', lambda match: f'{said} "kernels": {{\n{lines}}},\n{match.group()}', text,
                          count=1, flags=re.M)
    record = json.loads(text)
    assert count == 1 and record["kernels"] == kernels and record["sources_hash"] == sources_hash, \
        f"{path}: not laid out as records are"
    path.write_text(text)


def compare(path, generator, _):
    record = json.loads(path.read_text())
    if record["sources_hash"] == generator.sources_hash:
        return True, "current, made with these sources"
    if "kernels" not in record:
        return False, f"STALE, made with sources {record['sources_hash'][:12]}, and it lists no kernels"
    stale = differences(record, generator)
    return not stale, f"STALE in {', '.join(stale)}" if stale else "current, its kernels are made as they were"


def stamp(path, generator, _):
    record = json.loads(path.read_text())
    specs = specs_of(record)
    if record["sources_hash"] != generator.sources_hash:
        return False, f"made with sources {record['sources_hash'][:12]}, not with this generator's"
    if not specs:
        return True, "names no specification, left as it is"
    write(path, record.get("sources_hash_before", []), record["sources_hash"], generator.digests(specs))
    return True, f"stamped, {len(specs)} specifications"


def restamp(path, generator, before):
    record = json.loads(path.read_text())
    specs = specs_of(record)
    if not before.sources_hash.startswith(record["sources_hash"]):
        return True, f"made with sources {record['sources_hash'][:12]}, not with OLD's: left as it is"
    if not specs:
        return True, "names no specification: left as it is"
    then, now = before.digests(specs), generator.digests(specs)
    if then != now:
        return False, f"STALE in {', '.join(changed(then, now))}: left as it is"
    write(path, [*record.get("sources_hash_before", []), record["sources_hash"]], generator.sources_hash, now)
    return True, f"restamped, {sum(group['kernels'] for group in now.values())} kernels equal to the byte"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flpgen", required=True, help="the command of this tree")
    parser.add_argument("--before", help="for --restamp: the command of the commit that made the records")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--stamp", action="store_true", help="write the kernels of new records")
    action.add_argument("--restamp", action="store_true", help="carry records over a change that kept their kernels")
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    arguments = parser.parse_args()
    if arguments.restamp != bool(arguments.before):
        parser.error("--before: it goes with --restamp")
    generator = Generator(arguments.flpgen)
    before = Generator(arguments.before) if arguments.before else None
    act = restamp if arguments.restamp else stamp if arguments.stamp else compare
    good = True
    for path in arguments.records:
        fine, text = act(path, generator, before)
        good &= fine
        print(f"{path.name}: {text}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
