-- expect: portable/forward.lua:4: the template ran 200000000 steps without an end
return function(k, spec)
  local t = setmetatable({}, {__index = tostring, __tostring = table.concat})
  local s = table.concat(t, "", 1, 1 << 62)
end
