-- expect: argument_condition.lua:2: +: expected a value or a number, got a condition
return function(row) return row.logprob + lt(row.logprob, 0) end
