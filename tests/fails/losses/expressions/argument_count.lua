-- expect: argument_count.lua:2: clamp: expected 3 arguments, got 2
return function(row) return clamp(row.logprob, 0) end
