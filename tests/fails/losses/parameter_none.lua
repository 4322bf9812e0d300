-- expect: parameter_none.lua:2: there is no parameter 'beta'; there is none
return function(row, p) return p.beta * row.logprob end
