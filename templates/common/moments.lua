-- moments.lua: what the statistics of a row are made of: part statistics of forward.
--
--   part of statistics [leaf or group][r|z][row]      r = Σ 4^(t-m), z = Σ y over its columns, t = row_scale·y

return function(k, _, M)
  local S = k.import "score" (k)

  local function sum(p, active, sum, place)
    local at = place * 2 * p.capacity + k.convert(k.i64, active - p.row_begin)
    k.store(p.statistics_part, at, sum.r)
    k.store(p.statistics_part, at + p.capacity, sum.z)
  end

  -- Of each row and block of an accumulator of wgmma Σ y. real: columns that are, from the thread's first on; nil: all
  local function totals(acc, rows, real)
    local out = {}
    for i, row in ipairs(rows) do
      out[i] = {}
      for block = 1, M.width // 64 do
        local y, place = {}, {}
        for j = block * 8 - 8, block * 8 - 1 do
          for e = 0, 1 do y[#y + 1], place[#place + 1] = acc[M.at(row.w, row.h, j, e)], j * 8 + e end
        end
        out[i][block] = S.total(y, real and function(at) return k.gt(real, place[at]) end)
      end
    end
    return out
  end

  return {sum = sum, totals = totals}
end
