-- expect: result_nil.lua:3: the loss is nil; a value or a number is accepted
local unused = 1
return function(row) local loss = -row.logprob end
