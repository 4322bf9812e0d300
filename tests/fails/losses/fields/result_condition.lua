-- expect: result_condition.lua:1: the loss is a condition; a number is accepted
return function(row) return lt(row.logprob, 0) end
