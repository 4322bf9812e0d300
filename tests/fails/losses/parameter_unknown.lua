-- expect: parameter_unknown.lua:2: there is no parameter 'beta'; there is clip
return {parameters = {clip = 0.2}, loss = function(row, p) return p.beta * row.logprob end}
