-- forward_emit.lua: forward that also lists the columns of a row above a floor, for mode T.
--
--   (v, t - floor[a]) for each t > floor[a] -> emit_entry; how many -> emit_count
--
-- online.lua has the largest t of each block of a row anyway: a row's floor costs a comparison with that, and what is
-- listed (emission.lua) costs only where a thread of the warp has such a column.

return function(k, spec)
  local emission = k.import "emission"
  k.import "online" (k, spec, "forward_emit", function(M) return emission(k, spec, M) end)
end
