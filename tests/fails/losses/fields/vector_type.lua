-- expect: vector_type.lua:1: vectors: expected an array of names, got one of a Lua integer
return {vectors = {3}, loss = function(row) return row.logprob end}
