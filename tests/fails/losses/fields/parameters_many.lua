-- expect: parameters_many.lua:1: a loss may have at most 8 parameters
local parameters = {}
for i = 1, 9 do parameters["p" .. i] = i end
return {parameters = parameters, loss = function(row) return row.logprob end}
