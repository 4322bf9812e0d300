"""What explain, gen, check and tune --dry-run answer where no GPU is: the files of tests/golden/answers, whose
questions are commands.

An answer has what the document says, for the GPU that is assumed: of the specialisation the fields that are not as
usual, kernels by architecture, and of each number of rows what every way costs, what layouts the passes get, and why a
mode is taken; of each head what is tuned, and what would be tried first. `| way mode` behind a command asks for these
lines alone, `| here` for what the CPU rung does in their place, without its bytes, which are those of this machine's
threads. Checks have all passed: how many cases there are, the options that each has, those that some have, with the
case if it is one, and the cases by the outputs that are compared. `> NAME TEXT` writes a small file."""
import functools
import shlex
from pathlib import Path

import pytest

import transcripts
from flpgen_tool import document_of, needs_flpgen, succeed

pytestmark = needs_flpgen

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "answers"
USUAL = "spec kernels way layout mode target"


def make(folder, words):
    name, _, text = words.partition(" ")
    (folder / name).write_text(text)


def word(value):
    return ",".join(value) if isinstance(value, list) else f"{value:.15g}" if isinstance(value, float) else value


def pairs(values, *left_out):
    """name=value of what is there and not 0; of lists the words."""
    return " ".join(f"{name}={word(value)}" for name, value in values.items()
                    if name not in left_out and value not in (None, 0, []))


def of_spec(spec):
    usual = {**document_of("explain", "--vocab", 8, "--hidden", 8)["spec"], "vocab": None, "hidden": None}
    return f"spec: {pairs({name: value for name, value in spec.items() if value != usual[name]})}"


def of_kernels(kernels):
    arches = sorted({kernel["key"]["arch"] for kernel in kernels})
    return [f"kernels {arch}: " + " ".join(kernel["key"]["kind"] for kernel in kernels if kernel["key"]["arch"] == arch)
            for arch in arches]


def of_rows(row):
    return [*(f"way {way['name']}: {pairs(way, 'name')}" for way in row["ways"]),
            *(f"layout {layout['pass']}: {pairs(layout, 'pass')}" for layout in row["assumed_layouts"]),
            *(f"here {layout['pass']}: {layout.get('mode', 'none')}" for layout in row["layouts"]),
            *(f"mode {mode['mode']}: {mode['saved_bytes'] or 'no'} bytes, {mode['why']}"
              for mode in row["assumed_modes"]),
            *(f"here {mode['mode']}: {mode['why']}" for mode in row["modes"])]


def of_head(target):
    tried = "; ".join(f"{kind['kind']} {len(kind['tried'])} of {kind['candidates']}, {kind['tried'][0]['cut']}"
                      for kind in target["kinds"])
    return f"target {target['model'] or '-'}: {target['spec']}: {tried}"


def of_checks(rows):
    texts = [{name: text for name, text in row.items() if isinstance(text, str)} for row in rows]
    count = len({tuple(own.values()) for own in texts})
    options, outputs, alike, each, some = {}, {}, {}, [], []
    for row, own in zip(rows, texts):
        for word in (*pairs(own, "case", "shape", "options").split(), *row["options"].split()):
            options.setdefault(word.partition("=")[0], {}).setdefault(word, []).append(row["case"])
        outputs.setdefault(row["case"], set()).update(row["outputs"], row["exact"])
    for name, words in sorted(options.items()):
        if sum(map(len, words.values())) == len(rows):
            each += words if len(words) == 1 else [f"{name}=..."]
        if list(map(len, words.values())) != [len(rows)]:
            some += [word if len(set(cases)) > 1 else f"{word} ({cases[0]})" for word, cases in sorted(words.items())]
    for case, compared in outputs.items():
        alike.setdefault(", ".join(sorted(compared)), []).append(case)
    return [f"each of {count}: {' '.join(each)}", *([f"some: {' '.join(some)}"] if some else []),
            *(f"compared {compared}: {', '.join(cases)}" for compared, cases in alike.items())]


def answer(folder, question):
    command, _, parts = question.partition(" | ")
    document = succeed(*shlex.split(command)[1:], "--json", cwd=folder,
                       FLP_CUDA_LIBRARY="/nonexistent/libcuda.so.1").json()
    said = [of_head(target) for target in document.get("targets", [])]
    if "spec" in document:
        said += [of_spec(document["spec"]), *of_kernels(document.get("kernels") or document["assumed"]["kernels"])]
    if "checks" in document:
        assert command in document["command"]
        return of_checks(document["rows"])
    for row in document.get("rows", []):
        said += of_rows(row)
    return [line for line in said if line.split()[0].rstrip(":") in (parts or USUAL).split()]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=[pytest.mark.long] * ("sets" in path.stem))
                                  for path in sorted(GOLDEN.glob("*.txt"))])
def test_what_is_answered(tmp_path, path):
    transcripts.check(path, functools.partial(make, tmp_path), functools.partial(answer, tmp_path))
