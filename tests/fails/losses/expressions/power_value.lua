-- expect: power_value.lua:2: ^: expected a Lua integer from 1 to 8 as exponent, got a value; x^y is exp(y * log(x))
return function(row) return 2 ^ row.logprob end
