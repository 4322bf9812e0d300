-- expect: compare_less.lua:3: values of a row cannot be compared by Lua's < or >; use lt or gt
return function(row, p)
  if row.advantage > 0 then return row.logprob end
  return -row.logprob
end
