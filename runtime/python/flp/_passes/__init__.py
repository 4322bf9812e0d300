"""One pass of one call: its plan, its memory, its launch, and its place in autograd's graph."""
