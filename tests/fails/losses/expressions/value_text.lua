-- expect: value_text.lua:2: a value of a row cannot be part of a string and has no length
return function(row) error("logprob " .. row.logprob) end
