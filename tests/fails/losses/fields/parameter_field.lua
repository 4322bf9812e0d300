-- expect: parameter_field.lua:1: parameter 'beta' has no field 'low'; accepted are default, min, max
return {parameters = {beta = {default = 2, low = 0}}, loss = function(row) return row.logprob end}
