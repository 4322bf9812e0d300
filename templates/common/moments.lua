-- moments.lua: what the statistics of a row are made of: part statistics of forward.
--
--   part of statistics [leaf or group][r|z][row]      r = Σ 4^(t-m), z = Σ y over its columns, t = row_scale·y

return function(k)
  local function sum(p, active, sum, place)
    local at = place * 2 * p.capacity + k.convert(k.i64, active - p.row_begin)
    k.store(p.statistics_part, at, sum.r)
    k.store(p.statistics_part, at + p.capacity, sum.z)
  end

  return {sum = sum}
end
