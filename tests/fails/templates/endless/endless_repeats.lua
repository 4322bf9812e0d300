-- expect: portable/forward.lua:3: the template ran 20000000 steps without an end
return function(k, spec)
  while true do local s = ("x"):rep(10000) end
end
