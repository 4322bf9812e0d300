-- expect: portable/forward.lua:4: k.loop: bounds differ in type, i32 and i64; use k.convert
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(p.depth, p.capacity, 1, nil, function(i) end)
  end}
end
