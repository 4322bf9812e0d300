-- expect: portable/forward.lua:4: table: a length of its own (__len) is not accepted
return function(k, spec)
  local t = setmetatable({}, {__len = function() return 1 << 62 end})
  table.insert(t, 1, 0)
end
