-- expect: name_bad.lua:1: 'My Loss' is no name of a loss (a-z, 0-9 and _, at most 63)
return {name = "My Loss", loss = function(row) return row.logprob end}
