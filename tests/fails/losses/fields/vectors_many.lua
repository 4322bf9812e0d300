-- expect: vectors_many.lua:1: a loss may have at most 8 vectors
local vectors = {}
for i = 1, 9 do vectors[i] = "v" .. i end
return {vectors = vectors, loss = function(row) return row.logprob end}
