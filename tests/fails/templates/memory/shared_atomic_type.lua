-- expect: portable/forward.lua:4: k.shared_atomic_or: value: expected i32, got f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.shared_atomic_or(k.shared(), p.cap_in)
  end}
end
