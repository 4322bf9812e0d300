-- expect: truth_while.lua:3: a condition on a row is always true in a loop, which runs while the loss is traced; use where
return function(row, p)
  while lt(row.logprob, 0) do end
  return row.logprob
end
