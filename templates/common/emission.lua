-- emission.lua: lists the columns of a row whose score is above its floor: what forward_emit.lua gives online.lua.
--
--   t - floor[a] > 0, one fused multiply-add: (v, t - floor[a]) -> place count[a][bin]++ of the bin (bins.lua)
--
-- What a bin that has overflowed or one below it would get is not looked for: who finds the bin full raises the row's
-- `from`, so that a flat row, of which nearly every column is above the floor, costs little. A `from` that is read too
-- early, or set by two bins at once, costs an addition, no more.

return function(k)
  local S, B = k.import "score" (k), k.import "bins" (k)
  local infinity = 1.0 / 0.0
  local i64 = function(v) return k.convert(k.i64, v) end

  -- The bits of the columns of a block whose score is above the floor.
  local function mask_of(block, scale, floor)
    local mask = k.const(k.i32, 0)
    for i, y in ipairs(block.y) do
      local above = k.gt(k.fma(y, scale, -floor), 0.0)
      if block.valid then above = above & block.valid(i) end
      mask = mask | (k.zext(k.i32, above) << (i - 1))
    end
    return mask
  end

  -- Just below the upper edge of a bin: what is rounded to the edge is not missed.
  local function behind(bin, floor)
    local edge = k.convert(k.f32, (bin + 1) * k.abi.EMIT_BIN_WIDTH) + floor
    return k.select(k.eq(bin, k.abi.EMIT_BINS - 1), infinity, edge - k.fma(k.abs(edge), 0x1p-22, 0x1p-10))
  end

  -- Stores the columns of a mask, those that their bins have places for.
  local function store_block(p, active, block, scale, floor, mask)
    k.while_(mask, function(mask) return k.ne(mask, 0) end, function(mask)
      local i = k.popcount((mask & -mask) - 1)
      local score = k.fma(S.pick(block.y, i), scale, -floor)
      local bin = B.of(score)
      local slot = k.atomic_add(p.emit_count, active * k.abi.EMIT_BINS + bin, k.const(k.i32, 1))
      local places, first = B.places(bin, p.emit_capacity)
      k.when(k.eq(slot, places), function()
        k.store(p.emit_from, active, k.max(k.load(k.f32, p.emit_from, active), behind(bin, floor)))
      end)
      k.when(k.lt(slot, places), function()
        local at = i64(active) * i64(p.emit_capacity) + i64(first + slot)
        k.store(p.emit_column, at, block.column + ((k.lshr(i, 1) << 3) | (i & 1)))
        k.store(p.emit_score, at, score)
      end)
      return mask & (mask - 1)
    end)
  end

  -- K.meet of online.lua. active: a row, which exists below `last`.
  return function(p, active, last, scale, blocks)
    local exists = k.lt(active, last)
    local row = k.select(exists, active, p.row_begin)
    local from = k.select(exists, k.load(k.f32, p.emit_from, row), infinity)
    local hit
    for _, block in ipairs(blocks) do
      local above = k.ge(block.top, from)         -- t rounded may be `from` where t is above it
      hit = hit and hit | above or above
    end
    k.when(k.any(hit), function()
      k.when(hit, function()
        local floor = k.load(k.f32, p.floor, row)
        for _, block in ipairs(blocks) do store_block(p, active, block, scale, floor, mask_of(block, scale, from)) end
      end)
    end)
  end
end
