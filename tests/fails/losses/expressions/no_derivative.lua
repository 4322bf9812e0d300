-- expect: no_derivative.lua:2: the loss has no derivative by logprob, entropy, lse or mean_score
return function(row) return detach(row.logprob) * row.advantage end
