"""python -m flp.bench: flp.linear_logprob beside the GEMM baselines and beside other libraries' ways.

Folders and files: options (the command line), cases, data and sharp (what is computed, on which tensors), ours and
peers/ (who computes it, one file a library, all behind peers/seam.py), pairs (a teacher beside the head, and the fp64
reference of both), baseline and cublaslt (the matrix products alone), reference (fp64), clock, limits, rounds and
memory (the measurement), run (the order of all this), record and table (what comes out).
"""
