-- expect: loss_of_each.lua:1: the loss has a value for each target; a value of the row, such as a sum, is accepted
return function(row) return -row.target_logprob end
