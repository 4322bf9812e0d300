-- expect: operations_many.lua:4: *: a loss may have at most 256 operations
return function(row)
  local x = row.logprob
  for _ = 1, 300 do x = x * row.advantage end
  return x
end
