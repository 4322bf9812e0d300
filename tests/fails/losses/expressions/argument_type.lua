-- expect: argument_type.lua:2: exp: expected a value or a number, got nil
return function(row, p) return exp(nil) end
