-- emission.lua: lists the columns of a row whose score is above its floor: what forward_emit.lua gives online.lua.
--
--   t - floor[a] > 0, one fused multiply-add: (v, t - floor[a]) -> place count[a][bin]++ of the bin (bins.lua)
--
-- What a bin that has overflowed or one below it would get is not looked for: a flat row, of which nearly every column is
-- above the floor, costs little. Counts that are read too early cost an addition, no more.

return function(k)
  local S, B = k.import "score" (k), k.import "bins" (k)
  local infinity = 1.0 / 0.0
  local i64 = function(v) return k.convert(k.i64, v) end

  -- The bits of the columns of a block whose score less the floor is above `from`.
  local function mask_of(block, scale, floor, from)
    local mask = k.const(k.i32, 0)
    for i, y in ipairs(block.y) do
      local above = k.gt(k.fma(y, scale, -floor), from)
      if block.valid then above = above & block.valid(i) end
      mask = mask | (k.zext(k.i32, above) << (i - 1))
    end
    return mask
  end

  -- Stores the columns of a mask, those that their bins have places for.
  local function store_block(p, active, block, scale, floor, mask)
    k.while_(mask, function(mask) return k.ne(mask, 0) end, function(mask)
      local i = k.popcount((mask & -mask) - 1)
      local score = k.fma(S.pick(block.y, i), scale, -floor)
      local bin = B.of(score)
      local slot = k.atomic_add(p.emit_count, active * k.abi.EMIT_BINS + bin, k.const(k.i32, 1))
      local places, first = B.places(bin, p.emit_capacity)
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
    local floor = k.select(exists, k.load(k.f32, p.floor, row), infinity)
    local hit
    for _, block in ipairs(blocks) do
      local above = k.ge(block.top, floor)        -- t rounded may be the floor where t is above it
      hit = hit and hit | above or above
    end
    k.when(k.any(hit), function()
      local lost = B.lost(B.counts(p.emit_count, row), p.emit_capacity)
      local from = B.from(lost)
      k.when(hit & k.lt(lost, k.abi.EMIT_BINS), function()
        for _, block in ipairs(blocks) do
          store_block(p, active, block, scale, floor, mask_of(block, scale, floor, from))
        end
      end)
    end)
  end
end
