-- expect: portable/forward.lua:4: k.mma: kind: expected "bf16", "fp16" or "tf32", got "int8"
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.mma("int8", {}, {}, {})
  end}
end
