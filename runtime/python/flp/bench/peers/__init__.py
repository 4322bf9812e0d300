"""Other libraries' ways to the same numbers: one file a library, each behind seam.Peer. No code of theirs is here."""
from ..cases import DIVERGE
from . import agilerl, cce, lck, liger, megatron, naive, quack, torch_compile, torch_linear, trl, unsloth, verl

PEERS = (naive.NaiveFp32, naive.Naive16, torch_compile.TorchCompile, torch_linear.TorchLinear, cce.Cce,
         cce.CceFilter, liger.LigerNone, liger.LigerMean, liger.LigerCute, liger.LigerScaled, liger.LigerGrpo, lck.Lck,
         quack.QuackNone, quack.QuackMean, quack.QuackScaled, unsloth.Unsloth, unsloth.UnslothMean, trl.Trl, verl.Verl,
         megatron.Megatron, agilerl.Agile16, agilerl.AgileFp32)
NAMES = tuple(peer.name for peer in PEERS)
DIVERGING = (trl.TrlDivergence, unsloth.UnslothJsd, liger.LigerJsd, liger.LigerJsdCute,
             torch_compile.TorchCompileDivergence)


def of(op):
    """Those of one of cases.OPS."""
    return DIVERGING if op == DIVERGE else PEERS


def names_of(op):
    return tuple(peer.name for peer in of(op))
