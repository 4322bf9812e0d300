-- expect: compare_equal.lua:3: values of a row cannot be compared by Lua's == or ~=; use eq or ne
return function(row, p)
  if row.advantage == row.weight then return row.logprob end
  return -row.logprob
end
