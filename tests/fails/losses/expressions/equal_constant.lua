-- expect: equal_constant.lua:3: a value of a row never equals a Lua constant; use eq
return function(row, p)
  if row.advantage == 0 then return row.logprob end
  return -row.logprob
end
