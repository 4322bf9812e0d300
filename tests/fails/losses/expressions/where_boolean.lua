-- expect: where_boolean.lua:2: where: expected a condition, such as lt(a, b), got boolean
return function(row) return where(true, row.logprob, 0) end
