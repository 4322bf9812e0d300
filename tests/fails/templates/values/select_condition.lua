-- expect: portable/forward.lua:4: k.select: condition: expected i1, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.select(k.tid(), 1, k.tid())
  end}
end
