-- expect: differs_constant.lua:4: a value of a row always differs from a Lua constant; use ne
return function(row, p)
  local gain = max(row.advantage, 0)
  if gain ~= 0 then return row.logprob end
  return -row.logprob
end
