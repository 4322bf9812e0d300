-- expect: portable/forward.lua:4: k.atomic_add: value: expected i32, got f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.atomic_add(p.count, 0, p.cap_in)
  end}
end
