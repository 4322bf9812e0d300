-- expect: value_field.lua:2: a value of a row has no fields
return function(row) return row.logprob.value end
