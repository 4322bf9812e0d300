-- expect: parameter_unknown.lua:2: p (clip) has no parameter 'beta'
return {parameters = {clip = 0.2}, loss = function(row, p) return p.beta * row.logprob end}
