-- expect: portable/forward.lua:5: a kernel value never equals a Lua constant; use k.eq
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local n = k.tid()
    local same = n == 0
  end}
end
