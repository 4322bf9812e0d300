-- expect: portable/forward.lua:4: k.max: expected a kernel value, got a Lua integer
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.max(1, 2)
  end}
end
