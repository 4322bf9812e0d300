-- expect: parameter_default.lua:1: parameter 'beta': default: expected a number, got nil
return {parameters = {beta = {min = 0}}, loss = function(row) return row.logprob end}
