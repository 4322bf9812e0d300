-- forward_columns.lua: forward of a slice of the columns.

return function(k, spec)
  k.import "online" (k, spec, "forward_columns", function() return {by_columns = true} end)
end
