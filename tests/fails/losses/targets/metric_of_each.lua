-- expect: metric_of_each.lua:1: metric 'share' has a value for each target; a value of the row, such as a sum, is accepted
return function(row) return -sum(row.target_logprob), {share = exp(row.target_logprob)} end
