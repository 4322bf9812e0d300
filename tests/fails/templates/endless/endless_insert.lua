-- expect: portable/forward.lua:5: the template ran 20000000 steps without an end
return function(k, spec)
  local t = {}
  for i = 1, 10000 do t[i] = i end
  while true do table.insert(t, 1, 0) table.remove(t) end
end
