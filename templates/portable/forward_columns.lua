-- forward_columns.lua: forward of a slice of the columns.
--
-- On sm_90a the warps of the producer's warpgroup that load nothing round the weight's rows of the next slice meanwhile,
-- a warp a row, two vectors of 8 elements a lane at a time.

return function(k, spec)
  local function round_vector(from, to, i)
    local x, y = k.load_vector(k.f32, 4, from, i * 2, {const = true}), k.load_vector(k.f32, 4, from, i * 2 + 1, {const = true})
    return function()
      local type = spec.dtype == "bf16" and k.bf16 or k.f16
      k.store_vector(to, i, {k.pack(type, x[1], x[2]), k.pack(type, x[3], x[4]), k.pack(type, y[1], y[2]),
                             k.pack(type, y[3], y[4])})
    end
  end

  -- warp: its number among those of all CTAs, of `warps`
  local function round_ahead(p, warp, warps)
    local vectors = p.depth // 8
    k.while_(warp, function(row) return k.lt(row, p.ahead_rows) end, function(row)
      local at = k.convert(k.i64, row)
      local from = k.offset(p.ahead_source, at * p.ahead_stride * 4)
      local to = k.offset(p.ahead_out, at * k.convert(k.i64, p.depth) * 2)
      local pairs_end = vectors & -64
      k.loop(k.lane(), pairs_end, 64, nil, function(i)
        local first, second = round_vector(from, to, i), round_vector(from, to, i + 32)
        first(); second()
      end)
      k.loop(pairs_end + k.lane(), vectors, 32, nil, function(i) round_vector(from, to, i)() end)
      return row + warps
    end)
  end

  k.import "online" (k, spec, "forward_columns", function() return {by_columns = true, aside = round_ahead} end)
end
