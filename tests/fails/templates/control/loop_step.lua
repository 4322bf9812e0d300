-- expect: portable/forward.lua:4: k.loop: step: 0 is not in [1, 2147483647]
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, p.depth, 0, nil, function(i) end)
  end}
end
