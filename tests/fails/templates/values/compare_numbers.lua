-- expect: portable/forward.lua:4: k.lt: expected a kernel value, got a Lua integer and a Lua integer
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local c = k.lt(1, 2)
  end}
end
