-- expect: portable/forward.lua:4: k.ballot: expected i1, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.ballot(k.tid())
  end}
end
