-- raw.lua: stores the raw scores of every column: part raw of forward.
--
--   x = h·w + b -> raw_scores[row][v]          f32, of active rows; no other is written
--
-- The four threads of a row have pairs of neighbouring columns: together they fill sectors of 32 bytes.

return function(k, spec)
  local is_aligned = spec.alignment >= 8

  -- The two scores of a pair, at an even column.
  local function store_pair(out, column, pair)
    if is_aligned then return k.store_vector(out, k.lshr(column, 1), pair) end
    for e = 0, 1 do k.store(out, column + e, pair[e + 1]) end
  end

  local function store_row(p, row, first, whole)
    local at = k.convert(k.i64, k.load(k.i32, p.raw_rows, row.active)) * p.raw_scores_stride
    local out = k.offset(p.raw_scores, at * 4)
    for j = 0, #row.y // 2 - 1 do
      local column, pair = first + j * 8, {row.y[2 * j + 1], row.y[2 * j + 2]}
      if whole then store_pair(out, column, pair)
      else
        for e = 0, 1 do
          k.when(k.lt(column + e, p.vocab_valid), function() k.store(out, column + e, pair[e + 1]) end)
        end
      end
    end
  end

  local function raw(p, rows, column, lane)
    local function store(whole)
      for _, row in ipairs(rows) do
        k.when(row.exists, function() store_row(p, row, column + (lane & 3) * 2, whole) end)
      end
    end
    k.when(~k.is_null(p.raw_scores), function()
      k.branch(k.le(column + #rows[1].y * 4, p.vocab_valid), function() store(true) end, function() store(false) end)
    end)
  end

  return {raw = raw}
end
