"""Other libraries' ways to the same numbers: one file a library, each behind seam.Peer. No code of theirs is here."""
from . import agilerl, cce, liger, naive, quack, torch_compile, verl

PEERS = (naive.NaiveFp32, naive.Naive16, torch_compile.TorchCompile, cce.Cce, liger.LigerNone, liger.LigerMean,
         liger.LigerScaled, liger.LigerGrpo, verl.Verl, quack.QuackNone, quack.QuackMean, agilerl.Agile16, agilerl.AgileFp32)
NAMES = tuple(peer.name for peer in PEERS)
