-- expect: vector_known.lua:1: vector 'weight': every row has that already
return {vectors = {"weight"}, loss = function(row) return row.logprob end}
