-- expect: syntax.lua:2: unexpected symbol near 'return'
local x = return function(row) return row.logprob end
