"""flpgen: what it writes where no regular file is (pipes, a full disk), and JSON of names that are no UTF-8."""
import json
import os
import stat
import subprocess
import threading

import numpy
import pytest

from flpgen_tool import FLPGEN, flpgen, needs_flpgen, read_safetensors, write_safetensors

pytestmark = needs_flpgen

SMALL = ["--vocab", "100", "--hidden", "64"]


def make_input(path):
    return write_safetensors(path, hidden=("F32", numpy.ones((3, 8))), weight=("F32", numpy.ones((4, 8))),
                             target=("I32", numpy.zeros(3)))


def read_pipe(path, arguments):
    """Runs the command while another thread reads the pipe that it writes; -> its outcome and what was read."""
    got = []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()), daemon=True)
    reader.start()
    done = flpgen(*arguments)
    reader.join(timeout=600)
    assert stat.S_ISFIFO(path.stat().st_mode), "the pipe was replaced"
    return done, got[0]


def test_run_writes_to_a_pipe_as_to_a_file(tmp_path):
    source = make_input(tmp_path / "in.safetensors")
    done, got = read_pipe(tmp_path / "pipe", ["run", "-i", source, "--rung", "eager", "-o", tmp_path / "pipe"])
    assert done.code == 0, done.err
    (tmp_path / "copy").write_bytes(got)
    assert numpy.allclose(read_safetensors(tmp_path / "copy")["logprob"], -numpy.log(4))


def test_no_temporary_file_stays(tmp_path):
    source = make_input(tmp_path / "in.safetensors")
    (tmp_path / "place").mkdir()
    done = flpgen("run", "-i", source, "--rung", "eager", "-o", tmp_path / "place")
    assert done.code == 4
    assert done.err.splitlines()[-1] == f"flpgen run: {tmp_path / 'place'}: cannot write: Is a directory"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.safetensors", "place"]


@pytest.mark.parametrize("plant", ["ln -s victim", "cp victim"])
def test_a_file_that_others_foresaw_is_neither_followed_nor_used(tmp_path, plant):
    """The process id, which containers share, told the name of the temporary file."""
    source = make_input(tmp_path / "in.safetensors")
    (tmp_path / "victim").write_text("precious")
    command = f'{plant} out.tmp-$$ && echo $$ && exec "$@"'
    done = subprocess.run(["sh", "-c", command, "sh", FLPGEN, "run", "-i", source, "--rung", "eager", "-o", "out"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    planted = tmp_path / f"out.tmp-{done.stdout.split()[0]}"
    assert (tmp_path / "victim").read_text() == planted.read_text() == "precious"
    assert numpy.allclose(read_safetensors(tmp_path / "out")["logprob"], -numpy.log(4))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.safetensors", "out", planted.name, "victim"]


@pytest.mark.parametrize("arguments", [["gen", *SMALL, "--emit", "ptx"], ["loss", "show", "grpo", "--emit", "ptx"],
                                       ["loss", "list"], ["--help"], ["--version"]])
def test_a_full_disk_is_reported_whatever_the_length_of_the_output(arguments):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([FLPGEN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600)
    assert done.returncode == 4
    assert done.stderr.endswith(": standard output: cannot write\n")


def test_json_of_names_that_are_no_utf8(tmp_path):
    source = make_input(tmp_path / "in.safetensors")
    name = os.fsencode(tmp_path) + b"/\xff"
    environment = {**os.environ, b"FLP_CUDA_LIBRARY": name}
    options = {"capture_output": True, "timeout": 600}
    done = subprocess.run([FLPGEN, "run", "-i", str(source), "--json"], env=environment, **options)
    assert done.returncode == 0 and "/?" in json.loads(done.stdout)["plan"]
    failed = subprocess.run([FLPGEN, "run", "-i", name, "--json"], **options)
    assert failed.returncode == 4 and json.loads(failed.stdout)["error"]["message"].endswith("/?: cannot open: "
                                                                                            "No such file or directory")
    config = name + b".json"
    with open(config, "w", encoding="ascii") as file:
        file.write('{"vocab_size": 100, "hidden_size": 64}')
    dry = subprocess.run([FLPGEN, "tune", "--dry-run", "--model", config, "--json"], **options)
    assert dry.returncode == 0 and json.loads(dry.stdout)["targets"][0]["model"].endswith("?.json")
