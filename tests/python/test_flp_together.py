"""Every function that takes options of a head refuses each pair of flp._library._together that
does not go together, by name."""
import inspect

import pytest
import torch

import flp
import flp.parallel
from flp._library import _together
from flp_reference import DEVICE, problem
from flp_standin_lm import TinyLM

N, V, D = 4, 331, 64
FUNCTIONS = (flp.linear_logprob, flp.explain, flp.parallel.linear_logprob, flp.linear_logprob_partial,
             flp.linear_logprob_backward, flp.logprob_head, flp.policy_loss)
# Options by another name: several targets are target's shape, slices are mixed of a float32 weight.
PLACES, MIXED = {"slices": "mixed"}, ("round", "split")


def value_of(option):
    """A value that is given."""
    return {"lora": lambda: flp.Lora(torch.zeros(8, D, device=DEVICE), torch.zeros(V, 8, device=DEVICE)),
            "keep": lambda: (torch.arange(N + 1, device=DEVICE), torch.zeros(N, dtype=torch.int64, device=DEVICE)),
            "target": lambda: torch.zeros(N, 2, dtype=torch.int64, device=DEVICE), "kept_mass": lambda: True,
            "save": lambda: True, "old_lse": lambda: torch.zeros(N, device=DEVICE), "tail": lambda: 2.0**-9,
            "tail_report": lambda: torch.zeros(4, device=DEVICE), "topk": lambda: 3, "rank": lambda: True,
            "grad_weight_accumulate": lambda: torch.zeros(V, D, device=DEVICE), "mixed": lambda: "round",
            "slices": lambda: "split", "sequence_parallel": lambda: True, "gather": lambda: lambda tensors: None,
            "chunk_rows": lambda: 2, "loss": lambda: "nll", "eager": lambda: True,
            "reference": lambda: flp.Reference(torch.zeros(1, N, D, device=DEVICE), torch.zeros(V, D, device=DEVICE)),
            }[option]()


def takes(function, option):
    if option == "target":
        return function in FUNCTIONS[:5]
    if option == "reference":  # of linear_logprob it is another one
        return function is flp.policy_loss
    return PLACES.get(option, option) in inspect.signature(function).parameters


PAIRS = [(function, option, other) for function in FUNCTIONS for option, others in _together.WITHOUT.items()
         for other in others if takes(function, option) and takes(function, other)
         and (function is not flp.logprob_head or option == "eager")]  # its other pairs show in a call of the model


def call(function, options):
    if function is flp.logprob_head:
        return function(TinyLM(), **options)
    hidden, weight, target, _ = problem(n=N, vocab=V, depth=D)
    if "slices" in options:
        hidden, options["mixed"] = hidden.bfloat16(), options.pop("slices")
    given = [hidden, weight, options.pop("target", target)]
    if function is flp.policy_loss:
        given = ["ppo", hidden[None], weight, target[None], torch.ones(1, device=DEVICE)]
    if function is flp.linear_logprob_backward:
        given += [torch.zeros(N, 4, device=DEVICE), torch.ones(given[2].shape, device=DEVICE)]
    if function is flp.linear_logprob_partial:
        options.update(vocab_offset=0, vocab_total=V)
    return function(*given, **options)


def test_there_is_a_pair_for_each_row_and_function():
    assert {option for _, option, _ in PAIRS} == set(_together.WITHOUT) and {function for function, *_ in PAIRS} == set(FUNCTIONS)


@pytest.mark.parametrize("function, option, other", PAIRS,
                         ids=lambda value: getattr(value, "__module__", "") + "." + value.__name__ if callable(value) else value)
def test_pair(one_rank, function, option, other):
    accepted, name = _together.ACCEPTED.get(other, "None"), _together.NAMES.get(option, option)
    words = r"^%s is .* \(accepted: %s with %s, " % ("mixed" if other == "slices" else other, accepted, name)
    for mixed in MIXED if {option, other} & {"mixed", "slices"} else (None,):
        given = {name: mixed if mixed and name in ("mixed", "slices") else value_of(name) for name in (option, other)}
        with pytest.raises(ValueError, match=words):
            call(function, given)


@pytest.mark.parametrize("option", ["lora", "keep", "target", "topk", "rank", "slices", "tail", "chunk_rows", "old_lse"])
def test_each_option_goes_alone(option):
    absent = {"save": False, "tail": 0, "topk": 0, "rank": False, "kept_mass": False, "keep": None, "mixed": None,
              "grad_weight_accumulate": None}
    others = _together.WITHOUT.get(option, ())
    call(flp.linear_logprob, {option: value_of(option), **{name: absent[name] for name in others if name in absent}})
