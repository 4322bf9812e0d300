-- expect: truth_if.lua:3: a condition on a row is always true in 'if'; use where
return function(row, p)
  if gt(row.advantage, 0) then return row.logprob end
  return -row.logprob
end
