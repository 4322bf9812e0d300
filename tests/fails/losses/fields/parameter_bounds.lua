-- expect: parameter_bounds.lua:1: parameter 'beta': default 2 is not in [0, 1]
return {parameters = {beta = {default = 2, min = 0, max = 1}}, loss = function(row) return row.logprob end}
