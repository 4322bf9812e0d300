"""What the tests of tests/install share: commands that must succeed, and the names that a library exports."""
import os
import re
import subprocess


def run(*command, env=None):
    """Output of a command that must succeed; its whole output is the failure message otherwise."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, **(env or {})})
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def refused(*command, env=None):
    """What a command that must fail said."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, **(env or {})})
    assert done.returncode != 0, f"{command} succeeded\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def names_place(text, place):
    """Whether a text has this absolute path, or one below it; "lib/flp" is none of /flp."""
    return re.search(r"(?<![\w.}/-])" + re.escape(str(place)) + r"(?![\w.-])", text) is not None


def exported_symbols(library):
    """{name: its version, "" for none}"""
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    names = [line.split()[-1] for line in lines if line.split()[-2] != "A"]
    return {name.partition("@")[0]: name.rpartition("@")[2] if "@" in name else "" for name in names}
