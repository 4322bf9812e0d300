-- forward_top.lua: forward that also lists the columns of a row that may be among its best, and counts those above its
-- target; how, contenders.lua describes.

return function(k, spec)
  local meet = k.import "contenders" (k)
  k.import "online" (k, spec, "forward_top", function() return {meet = meet, by_columns = true} end)
end
