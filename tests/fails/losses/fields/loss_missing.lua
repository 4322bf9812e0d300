-- expect: loss_missing.lua:1: a file returns a function of row and p, or a table with it as 'loss', not nil
return {formula = "none"}
