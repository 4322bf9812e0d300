-- expect: metric_condition.lua:1: metric 'clipped': expected a number, got a condition
return function(row) return row.logprob, {clipped = lt(row.logprob, 0)} end
