-- expect: truth_not.lua:4: 'not' of a condition is always false; use ~
return function(row, p)
  local far = gt(row.logprob, -1)
  return where(not far, row.logprob, 0)
end
