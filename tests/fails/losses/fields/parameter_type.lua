-- expect: parameter_type.lua:1: parameter 'beta': expected a number or {default =, min =, max =}, got string
return {parameters = {beta = "0.1"}, loss = function(row) return row.logprob end}
