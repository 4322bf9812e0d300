-- expect: portable/forward.lua:3: the template ran 20000000 steps without an end
return function(k, spec)
  local s = table.concat({}, "", 1, 1 << 62)
end
