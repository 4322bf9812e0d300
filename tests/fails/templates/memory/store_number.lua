-- expect: portable/forward.lua:4: k.store: value: expected a kernel value, got a Lua float
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.store(p.zy, 0, 1.0)
  end}
end
