-- expect: result_table.lua:2: the loss is table; a value or a number is accepted
return function(row) return {row.logprob} end
