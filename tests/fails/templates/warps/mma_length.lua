-- expect: portable/forward.lua:5: k.mma: b: expected an array of 2 i32, got one of 4
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local w = k.ldmatrix(k.shared())
    k.mma("bf16", w, w, {0.0, 0.0, 0.0, 0.0})
  end}
end
