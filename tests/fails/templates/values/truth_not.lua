-- expect: portable/forward.lua:5: 'not' of a kernel value is always false; use ~ on the condition
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local hit = k.lt(k.tid(), 3)
    k.when(not hit, function() k.barrier() end)
  end}
end
