-- expect: portable/forward.lua:4: k.loop: body: expected a function, got nil
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, p.depth, 1, nil, nil)
  end}
end
