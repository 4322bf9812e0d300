-- expect: constant_nan.lua:2: *: a constant of a loss may not be NaN
return function(row) return row.logprob * (0.0 / 0.0) end
