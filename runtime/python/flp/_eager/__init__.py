"""The torch form of the eager rung: what device tensors run where no kernel does."""
