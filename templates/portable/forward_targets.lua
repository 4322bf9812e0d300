-- forward_targets.lua: forward that also stores the raw scores of the columns that a row lists, its K targets.
--
--   x[row][list_column[i]] -> score[row][target_place[i]]
--
-- online.lua has each row's scores in registers before they are summed: what a row without a column in a tile costs is a
-- load and a comparison (held.lua).

return function(k, spec)
  local hold = k.import "held" (k)
  k.import "online" (k, spec, "forward_targets", function() return {hold = hold} end)
end
