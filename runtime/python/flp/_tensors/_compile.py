"""Keeps torch.compile out of the code that hands addresses to libflp.

A frame that torch.compile takes apart may lose a tensor between the reading of its address and the call that uses it.
Invariant: every function that reads an address is reached through outside_graphs, or from one that is.
"""
from __future__ import annotations

import functools
import importlib
import math
from typing import Any, Callable, TypeVar, cast

import torch

# Constant True while torch.compile traces; absent before torch 2.2.
is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
# Whether torch keeps operators of ours in its graphs, with shapes and derivatives: 2.4 and later.
HAS_OPERATORS = is_compiling is not None and all(hasattr(torch.library, name)
                                                 for name in ("register_fake", "register_autograd"))


def in_graph():
    """Whether a call is to be an operator of a graph. Under torch.func it is not: operators have no rules for that."""
    return HAS_OPERATORS and is_compiling() and not torch._C._are_functorch_transforms_active()


def is_tracing():
    """Whether torch.compile traces the caller, so that numbers may be symbols: what runs in the graph checks them."""
    return is_compiling is not None and is_compiling()


def numbers_of_graph(*numbers):
    """Numbers of a graph in the making, of which one may be another when it runs, as a tensor (count) float64 on the
    host, None as NaN; None: all are constants.

    An operator's own float would make a graph for each value, and torch may give it that of an earlier call
    (pytorch#197889).
    """
    import torch.fx.experimental.symbolic_shapes as shapes

    if not hasattr(shapes, "has_static_value"):
        return None
    if all(number is None or shapes.has_static_value(number) for number in numbers):
        return None
    return torch.stack([torch.ones((), dtype=torch.float64, device="cpu") * (math.nan if number is None else number)
                        for number in numbers])


def numbers_in(numbers, *otherwise):
    """The numbers of numbers_of_graph, None again where otherwise is None; numbers None: otherwise."""
    if numbers is None:
        return otherwise
    return tuple(None if other is None else number for number, other in zip(numbers.tolist(), otherwise))


Function = TypeVar("Function", bound=Callable[..., Any])


def outside_graphs_if_untold(function: Function) -> Function:
    """The function, left out of every graph where torch does not tell that it makes one (2.0, 2.1); elsewhere the
    function asks is_tracing()."""
    return outside_graphs(function) if is_compiling is None else function


def outside_graphs(function: Function) -> Function:
    """The function, left out of every graph; an eager call pays one test and does not import torch._dynamo."""
    if not hasattr(torch, "compile"):
        return function
    if not hasattr(torch, "_disable_dynamo"):  # 2.0
        return cast(Function, importlib.import_module("torch._dynamo").disable(function))
    anyone: Any = torch  # whose names differ between versions
    disabled = anyone._disable_dynamo(function)
    if is_compiling is None:
        return cast(Function, disabled)

    @functools.wraps(function)
    def call(*arguments, **keywords):
        if is_compiling():
            return disabled(*arguments, **keywords)
        return function(*arguments, **keywords)

    return cast(Function, call)
