-- expect: portable/forward.lua:5: kernel values cannot be compared by Lua's == or ~=; use k.eq or k.ne
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local a, b = k.tid(), k.lane()
    local c = a == b
  end}
end
