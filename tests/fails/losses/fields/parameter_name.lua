-- expect: parameter_name.lua:1: 'Beta' is no name of a parameter (a-z, 0-9 and _, at most 31)
return {parameters = {Beta = 2}, loss = function(row) return row.logprob end}
