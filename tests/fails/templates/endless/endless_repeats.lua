-- expect: portable/forward.lua: the template ran 200000000 steps without an end
return function(k, spec)
  while true do local s = ("x"):rep(1000000) end
end
