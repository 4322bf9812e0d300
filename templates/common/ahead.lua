-- ahead.lua: part columns of forward, a slice of the columns: while it multiplies, it makes terms of the next one.
--
-- On sm_90a the warps of the producer's warpgroup that load nothing round the weight's rows of the next slice meanwhile,
-- a warp a row, two vectors of 8 elements a lane at a time; where products take two terms (operand_terms.lua) one, as they
-- take twice as long.

return function(k, spec)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]

  -- to: the place of each term
  local function round_vector(from, to, i)
    local x = k.load_vector(k.f32, 4, from, i * 2, {const = true})
    table.move(k.load_vector(k.f32, 4, from, i * 2 + 1, {const = true}), 1, 4, 5, x)
    return function()
      for term = 1, #to do
        local words = {}
        for j = 1, 4 do words[j] = k.pack(element, x[2 * j - 1], x[2 * j]) end
        k.store_vector(to[term], i, words)
        for j = 1, term < #to and 8 or 0 do x[j] = x[j] - k.convert(k.f32, k.convert(element, x[j])) end
      end
    end
  end

  local function round_row(from, to, vectors)
    local pairs_end = #to == 1 and vectors & -64 or 0
    if #to == 1 then
      k.loop(k.lane(), pairs_end, 64, nil, function(i)
        local first, second = round_vector(from, to, i), round_vector(from, to, i + 32)
        first(); second()
      end)
    end
    k.loop(pairs_end + k.lane(), vectors, 32, nil, function(i) round_vector(from, to, i)() end)
  end

  -- warp: its number among those of all CTAs, of `warps`
  local function round_ahead(p, warp, warps)
    local two, depth = k.lt(p.ahead_depth, p.depth), p.ahead_depth
    k.while_(warp, function(row) return k.lt(row, p.ahead_rows) end, function(row)
      local at = k.convert(k.i64, row)
      local from = k.offset(p.ahead_source, at * p.ahead_stride * 4)
      local to = k.offset(p.ahead_out, at * k.convert(k.i64, p.depth) * 2)
      k.when(two, function() round_row(from, {to, k.offset(to, k.convert(k.i64, depth) * 2)}, depth // 8) end)
      k.when(~two, function() round_row(from, {to}, depth // 8) end)
      return row + warps
    end)
  end

  return {by_columns = true, aside = round_ahead}
end
