-- expect: metric_nil.lua:2: metric 'kl' is string; a value or a number is accepted
return function(row) return row.logprob, {kl = "k3"} end
