-- expect: field_unknown.lua:1: a loss has no field 'lose'; accepted are loss, parameters, vectors, name, formula, source
return {lose = function(row) return row.logprob end}
