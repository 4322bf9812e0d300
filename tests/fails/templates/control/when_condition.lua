-- expect: portable/forward.lua:4: k.when: condition: expected i1, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.when(k.tid(), function() end)
  end}
end
