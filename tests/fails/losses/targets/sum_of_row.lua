-- expect: sum_of_row.lua:2: sum: sum: expected a value of each target, got one of the row
return function(row) return sum(row.logprob) end
