-- expect: returns_nothing.lua:1: a file returns a function of row and p, or a table with it as 'loss', not nil
local loss = function(row) return row.logprob end
