-- expect: power.lua:2: ^: expected a Lua integer from 1 to 8 as exponent, got a Lua float; x^y is exp(y * log(x))
return function(row) return row.logprob ^ 0.5 end
