-- expect: metrics_number.lua:2: the second result is a value; a table of metrics by name is accepted
return function(row) return row.logprob, row.entropy end
