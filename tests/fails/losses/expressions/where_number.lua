-- expect: where_number.lua:2: where: expected a condition, such as lt(a, b), got a value
return function(row) return where(row.advantage, row.logprob, 0) end
