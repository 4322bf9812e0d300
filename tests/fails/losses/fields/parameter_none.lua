-- expect: parameter_none.lua:2: p (none) has no parameter 'beta'
return function(row, p) return p.beta * row.logprob end
