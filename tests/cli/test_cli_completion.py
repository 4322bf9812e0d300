"""flpgen completion: what the shells themselves offer, beside the help and the errors of the parsers."""
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time

import pytest

from flpgen_tool import FLPGEN, flpgen, needs_flpgen

pytestmark = needs_flpgen

LISTED = flpgen("completion", "commands").out if os.path.exists(FLPGEN) else ""
COMMANDS = [line.split("\t")[0] for line in LISTED.splitlines()]
LEAVES = [command for command in COMMANDS if not any(other.startswith(command + " ") for other in COMMANDS)]

# Bash divides words at '=', so that a test gives "--dtype", "=", "bf" for what a user types as --dtype=bf.
BASH = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_flpgen
printf '%s\n' "${COMPREPLY[@]}"
"""


def shell(command, *arguments, cwd=None, **environment):
    done = subprocess.run([str(word) for word in (*command, *arguments)], capture_output=True, text=True, cwd=cwd,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for name in ("bash", "zsh", "fish"):
        (folder / name).write_text(flpgen("completion", name).out)
    return folder


def bash(script, *words, cwd=None):
    out, err = shell(["bash", "-c", BASH, "bash"], script / "bash", "flpgen", *words, cwd=cwd)
    assert err == ""
    return out.split()


CASES = [  # words, the last one unfinished; what is offered
    (["pa"], ["pack"]),
    (["pack", ""], ["build", "verify", "inspect", "install", "--help"]),
    (["cache", "v"], ["verify"]),
    (["gen", "--templ"], ["--template-dir"]),
    (["pack", "build", "--tuned"], ["--tuned-for"]),
    (["gen", "--dtype", ""], ["bf16", "fp16", "fp32", "fp64"]),
    (["gen", "--dtype", "=", "b"], ["bf16"]),
    (["bench", "--data", ""], ["random", "policy", "text", "base"]),
    (["gen", "--dtype", "="], ["bf16", "fp16", "fp32", "fp64"]),
    (["--dtype", "b"], ["bf16"]),  # the default verb
    (["gen", "--grad", "hidden,w"], ["hidden,weight"]),
    (["gen", "--grad", "hidden,h"], []),
    (["tune", "--preset", "al"], ["all"]),
    (["pack", "build", "--preset", "qwen3-8b,llama-3.1-8"], ["qwen3-8b,llama-3.1-8b"]),
    (["gen", "--arch", "sm_80,sm_90"], ["sm_80,sm_90", "sm_80,sm_90a"]),
    (["bench", "--arch", "sm_"], ["sm_80", "sm_90a", "sm_100f"]),
    (["tune", "--mode", ""], ["save", "stream", "direction"]),
    (["run", "--entropy", ""], ["none", "forward"]),
    (["doctor", "--require", "e"], ["eager"]),
    (["gen", "--vocab", ""], []),
    (["loss", "show", "gr"], ["grpo"]),
    (["gen", "--json", "--gen"], ["--generic"]),
    (["gen", ""], []),
]


@pytest.mark.parametrize("words,offered", CASES, ids=[" ".join(words) for words, _ in CASES])
def test_bash(script, words, offered):
    assert bash(script, *words) == offered


def test_bash_offers_files(script, tmp_path):
    (tmp_path / "one.flpp").touch()
    (tmp_path / "own.lua").touch()
    (tmp_path / "out").mkdir()
    assert sorted(bash(script, "pack", "verify", "o", cwd=tmp_path)) == ["one.flpp", "out", "own.lua"]
    assert bash(script, "gen", "--out", "o", cwd=tmp_path) == ["out"]
    assert bash(script, "gen", "-o", "o", cwd=tmp_path) == ["out"]
    assert bash(script, "gen", "--loss", "ow", cwd=tmp_path) == ["own.lua"]


# --bogus ends a command whose option took the '?'.
@pytest.mark.parametrize("command", LEAVES)
def test_every_option_of_the_help_is_offered(script, command):
    named = re.findall(r"^ +(?:-\w, )?--([a-z0-9-]+)", flpgen(*command.split(), "--help").out.split("\n\n", 1)[1], re.M)
    offered = bash(script, *command.split(), "--")
    assert len(offered) == len(set(offered))
    parsed = {name for name in named
              if f"unrecognized option '--{name}'" not in flpgen(*command.split(), f"--{name}=?", "--bogus").err}
    assert {f"--{name}" for name in parsed} == set(offered)


@pytest.mark.parametrize("command", [command for command in LEAVES if command not in ("cache", "completion")])
def test_words_are_what_the_parser_names(script, command):
    """Where a parser refuses '?' with a list of words, the shell offers that list."""
    checked = 0
    for option in bash(script, *command.split(), "--"):
        refused = flpgen(*command.split(), f"{option}=?", "--bogus").err
        names = re.search(r"expected one of ([\w, -]+), got '\?'", refused)
        if names:
            assert bash(script, *command.split(), option, "") == names[1].split(", "), option
            checked += 1
    assert checked or command in ("loss list", "loss check", "pack verify", "pack inspect", "pack install", "sign",
                                  "verify")


def test_json_has_the_script(script):
    document = flpgen("completion", "zsh", "--json").json()
    assert document == {"shell": "zsh", "script": (script / "zsh").read_text()}


# ---- the other shells, where they are installed ----

FISH = [("flpgen pa", ["pack"]), ("flpgen pack ", ["build", "inspect", "install", "verify"]),
        ("flpgen gen --templ", ["--template-dir"]), ("flpgen gen --dtype ", ["bf16", "fp16", "fp32", "fp64"]),
        ("flpgen gen --dtype=b", ["--dtype=bf16"]), ("flpgen --dtype b", ["bf16"]),
        ("flpgen gen --grad hidden,w", ["hidden,weight"]), ("flpgen cache v", ["verify"]),
        ("flpgen gen --grad hidden,hid", []), ("flpgen tune --preset=al", ["--preset=all"]),
        ("flpgen loss show gr", ["grpo"]), ("flpgen pack verify o", ["one.flpp", "out/", "own.lua"]),
        ("flpgen gen --out o", ["out/"]), ("flpgen gen --loss ow", ["own.lua"])]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize("line,offered", FISH)
def test_fish(script, tmp_path, line, offered):
    (tmp_path / "one.flpp").touch()
    (tmp_path / "own.lua").touch()
    (tmp_path / "out").mkdir()
    out, err = shell(["fish", "--no-config", "-c"], f"source {script}/fish; complete -C '{line}'", cwd=tmp_path,
                     HOME=str(tmp_path), PATH=f"{os.path.dirname(FLPGEN)}:{os.environ['PATH']}")
    assert err == "" and sorted(text.split("\t")[0] for text in out.splitlines()) == offered


# A shell on a terminal of its own. What its completers add is written to a file: a screen would have to be understood.
ZSH = r"""
PS1= PS2=; autoload -Uz compinit; compinit -D -u; source {script}/zsh
compadd() {{
  [[ ${{@[(I)-[ODA]*]}} != 0 ]] || {{ local -a found; builtin compadd -O found "$@"; print -rl -- $found >>{found} }}
  builtin compadd "$@"
}}
print -r -- rea"dy"
"""


def on_terminal(command, first, marker, then, path, seconds=20):
    """Runs a command on a terminal, writes `first`, after the marker `then`, and waits for the file that this makes."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    try:
        os.write(terminal, first.encode())
        shown, end = "", time.monotonic() + seconds
        while marker not in shown and time.monotonic() < end and select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
        os.write(terminal, then.encode())
        while not path.exists() and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 4096).decode(errors="replace")
        time.sleep(0.5)
    except OSError as error:
        shown += str(error)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
    return shown


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
@pytest.mark.parametrize("line,offered", FISH[:6] + FISH[7:9])
def test_zsh(script, tmp_path, line, offered):
    found = tmp_path / "found"
    shown = on_terminal(["env", f"HOME={tmp_path}", "TERM=dumb", "zsh", "-f", "-i"],
                        ZSH.format(script=script, found=found), "ready", line + "\t", found)
    assert found.exists(), shown
    assert set(found.read_text().split()) >= {name.split("=")[-1] for name in offered}
