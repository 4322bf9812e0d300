-- expect: portable/forward.lua:4: state: a Lua integer has no kernel type; use k.const
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.branch(k.lt(k.tid(), 3), function() return 1 end, function() return k.tid() end)
  end}
end
