-- expect: no_derivative.lua:2: the loss has no derivative by logprob or entropy
return function(row) return detach(row.logprob) * row.advantage end
