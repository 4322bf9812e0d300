-- emission.lua: lists the columns of a row whose score is above its floor: what forward_emit.lua gives online.lua.
--
--   t - floor[a] > 0, one fused multiply-add: (v, t - floor[a]) -> place count[a][bin]++ of the bin (bins.lua)
--
-- What a bin that has overflowed or one below it would get is not looked for: a flat row, of which nearly every column is
-- above the floor, costs little. What is known too late costs an addition, no more.

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
      local bin, counts = B.of(score), active * k.abi.EMIT_BINS
      local slot = B.add(p.emit_count, counts, bin)
      local places, first = B.places(bin, p.emit_capacity)
      k.when(k.lt(slot, places), function()
        local at = k.zext(k.i64, active * p.emit_capacity + first + slot) -- 32 bits: ptxas spills less
        k.store(p.emit_column, at, block.column + ((k.lshr(i, 1) << 3) | (i & 1)))
        k.store(p.emit_score, at, score)
      end)
      k.when(k.eq(slot, places), function() B.mark(p.emit_count, counts, bin) end)
      return mask & (mask - 1)
    end)
  end

  -- K.meet of online.lua. active: a row, which exists below `last`.
  return function(p, active, last, scale, blocks)
    local exists = k.lt(active, last)
    local row = k.select(exists, active, p.row_begin)
    local floor = k.select(exists, k.load(k.f32, p.floor, row), infinity)
    local from = B.from(p.emit_count, row * k.abi.EMIT_BINS)
    local least = floor + from                      -- t rounded may be that where t is above it
    for _, block in ipairs(blocks) do
      k.when(k.any(k.ge(block.top, least)), function()
        store_block(p, active, block, scale, floor, mask_of(block, scale, floor, from))
      end)
    end
  end
end
