-- expect: portable/forward.lua:5: a kernel value always differs from a Lua constant; use k.ne
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local n = k.tid()
    local same = 0 ~= n
  end}
end
