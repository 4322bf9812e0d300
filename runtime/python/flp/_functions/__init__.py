"""The public functions over hidden states and over scores, one file each."""
