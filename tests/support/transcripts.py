"""Golden files of questions: a line `$ ` asks, lines `! ` below it are the answer, `> ` prepares what follows."""
import os


def check(path, prepare, ask):
    """Asks all anew; FLP_GOLDEN_UPDATE=1 writes the answers. ask: a question -> the lines of its answer"""
    lines, now = path.read_text(encoding="utf-8").splitlines(), []
    for line in lines:
        if line.startswith("> "):
            prepare(line[2:])
        if not line.startswith("! "):
            now.append(line)
        if line.startswith("$ "):
            now += [f"! {said}" for said in ask(line[2:])]
    if os.environ.get("FLP_GOLDEN_UPDATE") == "1":
        path.write_text("\n".join(now) + "\n", encoding="utf-8")
    assert now == lines, f"{path}: FLP_GOLDEN_UPDATE=1 writes it anew"
