-- expect: portable/forward.lua:4: k.loop: bounds are i32 or i64, got f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, p.cap_in, 1, nil, function(i) end)
  end}
end
