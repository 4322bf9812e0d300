-- expect: portable/forward.lua:4: k.while_: condition: expected i1, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.while_(p.depth, function(n) return n end, function(n) return n - 1 end)
  end}
end
