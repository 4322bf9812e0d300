-- expect: portable/forward.lua:4: a kernel value is always true in 'if'; use k.when, k.branch or k.select
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    if k.lt(k.tid(), 3) then k.barrier() end
  end}
end
