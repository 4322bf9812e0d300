-- expect: portable/forward.lua:5: a kernel value is always true in 'if'; use k.when, k.branch or k.select
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local hit = k.lt(k.tid(), 3)
    if hit then k.barrier() end
  end}
end
