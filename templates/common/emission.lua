-- emission.lua: lists the columns of a row whose score is above its floor: what forward_emit.lua gives online.lua.
--
--   t - floor[a] > 0, one fused multiply-add: (v, t - floor[a]) -> slot count[a]++ of the row's list
--
-- A thread takes slots for all of its columns of a row and tile at once.

return function(k)
  local S = k.import "score" (k)
  local infinity = 1.0 / 0.0
  local i64 = function(v) return k.convert(k.i64, v) end

  -- The bits of the columns of a block that are above the floor.
  local function mask_of(block, scale, floor)
    local mask = k.const(k.i32, 0)
    for i, y in ipairs(block.y) do
      local above = k.gt(k.fma(y, scale, -floor), 0.0)
      if block.valid then above = above & block.valid(i) end
      mask = mask | (k.zext(k.i32, above) << (i - 1))
    end
    return mask
  end

  -- Stores the columns of a mask from a slot on, those that fit, and returns the slot behind.
  local function store_block(p, active, block, scale, floor, mask, slot)
    local function fits(now) return k.ne(now.mask, 0) & k.lt(now.slot, p.emit_capacity) end
    return k.while_({mask = mask, slot = slot}, fits, function(now)
      local i = k.popcount((now.mask & -now.mask) - 1)
      local at = i64(active) * i64(p.emit_capacity) + i64(now.slot)
      k.store(p.emit_column, at, block.column + ((k.lshr(i, 1) << 3) | (i & 1)))
      k.store(p.emit_score, at, k.fma(S.pick(block.y, i), scale, -floor))
      return {mask = now.mask & (now.mask - 1), slot = now.slot + 1}
    end).slot
  end

  -- K.meet of online.lua. active: a row, which exists below `last`.
  return function(p, active, last, scale, blocks)
    local exists = k.lt(active, last)
    local floor = k.select(exists, k.load(k.f32, p.floor, k.select(exists, active, p.row_begin)), infinity)
    local hit
    for _, block in ipairs(blocks) do
      local above = k.ge(block.top, floor)        -- t rounded may be the floor where t is above it
      hit = hit and hit | above or above
    end
    k.when(k.any(hit), function()
      local masks, count = {}, k.const(k.i32, 0)
      for i, block in ipairs(blocks) do
        masks[i] = mask_of(block, scale, floor)
        count = count + k.popcount(masks[i])
      end
      k.when(k.ne(count, 0), function()
        local slot = k.atomic_add(p.emit_count, active, count)
        for i, block in ipairs(blocks) do slot = store_block(p, active, block, scale, floor, masks[i], slot) end
      end)
    end)
  end
end
