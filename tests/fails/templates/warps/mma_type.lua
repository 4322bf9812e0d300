-- expect: portable/forward.lua:5: k.mma: b[2]: expected i32, got f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local w = k.ldmatrix(k.shared())
    k.mma("bf16", w, {w[1], p.cap_in}, {0.0, 0.0, 0.0, 0.0})
  end}
end
