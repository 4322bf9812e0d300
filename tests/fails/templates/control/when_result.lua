-- expect: portable/forward.lua:4: k.when: the body returns i32; use k.branch
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.when(k.lt(k.tid(), 3), function() return k.tid() end)
  end}
end
