-- expect: portable/forward.lua:4: state: expected nil, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, 4, 1, nil, function(i) return i end)
  end}
end
