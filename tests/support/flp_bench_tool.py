"""What the tests of flp.bench share: a tiny case on the CPU."""
import json

import torch

from flp.bench import data, main, options

SHAPE = ["--device", "cpu", "--vocab", "96", "--hidden", "16", "--rows", "6", "--burst-ms", "0.2", "--rounds", "3"]


def parsed(*arguments):
    return options.parse([*SHAPE, *arguments])


def tensors_of(chosen):
    device = torch.device("cpu")
    return data.Data(chosen, data.Head(chosen, device), chosen.rows[0], device)


def record_of(path, *arguments):
    """What the whole run writes."""
    assert main.main([*SHAPE, "--quiet", "--json", str(path), *arguments]) == 0
    return json.loads(path.read_text())
