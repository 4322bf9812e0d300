"""What a call is given: tensors of torch and options, checked and settled, before anything runs."""
