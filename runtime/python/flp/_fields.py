"""What runtime/base/fields.h says of a call, written by tests/unit/kernel/test_fields_python.c."""
from ctypes import c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p

# Fields of flp_spec behind struct_bytes: name, type, value of FLP_SPEC_INIT.
SPEC = (
    ("dtype", c_int, 1),
    ("vocab", c_int64, 0),
    ("hidden", c_int64, 0),
    ("target_dtype", c_int, 5),
    ("entropy", c_int, 0),
    ("grads", c_uint32, 0),
    ("has_bias", c_int32, 0),
    ("softcap", c_float, 0),
    ("per_row_temperature", c_int32, 0),
    ("grad_hidden_dtype", c_int, 0),
    ("grad_weight_dtype", c_int, 0),
    ("accumulate_grad_weight", c_int32, 0),
    ("alignment", c_uint32, 16),
    ("op", c_int, 0),
    ("keep", c_int32, 0),
    ("loss", c_void_p, 0),
    ("loss_bytes", c_size_t, 0),
    ("grad_bias_dtype", c_int, 0),
    ("listed", c_int32, 0),
    ("tail", c_float, 0),
    ("targets", c_int32, 0),
    ("topk", c_int32, 0),
    ("rank", c_int32, 0),
    ("hidden_dtype", c_int, 0),
    ("weight_dtype", c_int, 0),
    ("bias_dtype", c_int, 0),
    ("mixed", c_int, 0),
    ("lora_rank", c_int32, 0),
    ("grad_lora_dtype", c_int, 0),
)

# What does not go together, by the keywords of calls: one, what it goes without, why.
APART = (
    ("keep", ("save", "tail", "target", "topk", "rank", "loss",), "whose columns are few already"),
    ("tail", ("save",), "whose forward pass keeps lists of columns"),
    ("target", ("save", "tail", "topk", "rank",), "whose passes recompute"),
    ("topk", ("save", "tail", "loss",), "whose forward pass keeps nothing"),
    ("rank", ("save", "tail", "loss",), "whose forward pass keeps nothing"),
    ("lora", ("save", "keep", "tail", "target", "topk", "rank", "mixed",), "whose passes recompute"),
    ("slices", ("keep", "tail", "target", "topk", "rank",), "which takes the weight in slices"),
)
