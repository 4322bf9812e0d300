-- emission.lua: lists the columns of a row whose score is above its floor: what forward_emit.lua gives online.lua.
--
--   t - floor[a] > gate[a], one fused multiply-add: (v, t - floor[a]) -> place count[a][bin]++ of the bin (bins.lua)
--
-- The gate of a row rises from 0 over bins that it does not need: those up to one that overflows, and those that are
-- below the threshold by what leaves have of its LSE. So a row whose floor is far too low, or that is flat, costs little
-- once some of its columns are known; and a gate that is read too early costs an addition, no more. Nothing waits for that
-- of a crowded bin: one that overflows if an eighth of the row is as a thread's part of a block.

local CROWD = 5        -- columns, of one bin, of a thread's part of a block: 16 at most
local CROWDED = 7      -- log2 of the columns of a row for each of which there is one: 16 times 8

return function(k)
  local S, B = k.import "score" (k), k.import "bins" (k)
  local i64 = function(v) return k.convert(k.i64, v) end
  local E = {}

  -- Gates are 0 or more: their bits are in order.
  local function raise(p, active, bin)
    k.atomic_max(p.emit_gate, active, k.bitcast(k.i32, B.gate(bin)))
  end

  -- The bits of the columns of a block whose score less the floor is so: is(score)
  local function mask_of(block, scale, floor, is)
    local mask = k.const(k.i32, 0)
    for i, y in ipairs(block.y) do
      local holds = is(k.fma(y, scale, -floor))
      if block.valid then holds = holds & block.valid(i) end
      mask = mask | (k.zext(k.i32, holds) << (i - 1))
    end
    return mask
  end

  local function first_of(mask) return k.popcount((mask & -mask) - 1) end

  -- Stores the columns of a mask in their bin, as many as it has places for.
  local function store_bin(p, active, block, scale, floor, bin, mask)
    local count = k.popcount(mask)
    local slot = k.atomic_add(p.emit_count, active * k.abi.EMIT_BINS + bin, count)
    local places, first = B.places(bin, p.emit_capacity)
    k.when(k.gt(slot + count, places), function() raise(p, active, bin + 1) end)
    k.while_({mask = mask, slot = slot}, function(now) return k.ne(now.mask, 0) & k.lt(now.slot, places) end,
      function(now)
        local i, at = first_of(now.mask), i64(active) * i64(p.emit_capacity) + i64(first + now.slot)
        local column, above = block.column + ((k.lshr(i, 1) << 3) | (i & 1)), k.fma(S.pick(block.y, i), scale, -floor)
        k.store_vector(p.emit_entry, at, {column, k.bitcast(k.i32, above)})
        return {mask = now.mask & (now.mask - 1), slot = now.slot + 1}
      end)
  end

  -- A bin of which a thread's part of a block has so many, where as many everywhere would be more than its places.
  local function is_crowded(p, bin, count)
    local places = B.places(bin, p.emit_capacity)
    return k.ge(count, CROWD) & k.gt(k.lshr(p.vocab_valid, CROWDED) * count, places)
  end

  -- Bin by bin: one addition for all that a thread has of a block, and for a crowded bin one that nothing waits for.
  -- Returns the gate that it leaves.
  local function store_block(p, active, block, scale, floor, gate)
    local function above(gate) return mask_of(block, scale, floor, function(score) return k.gt(score, gate) end) end
    return k.while_({mask = above(gate), gate = gate}, function(now) return k.ne(now.mask, 0) end, function(now)
      local bin = B.of(k.fma(S.pick(block.y, first_of(now.mask)), scale, -floor))
      local low, high = B.edge(bin), B.edge(bin + 1)
      local mine = now.mask & mask_of(block, scale, floor, function(score) return k.ge(score, low) & ~k.ge(score, high) end)
      return k.branch(is_crowded(p, bin, k.popcount(mine)), function()
        local gate = k.max(now.gate, B.gate(bin + 1))
        k.atomic_add(p.emit_count, active * k.abi.EMIT_BINS + bin, p.emit_capacity)
        raise(p, active, bin + 1)
        return {mask = now.mask & above(gate), gate = gate}
      end, function()
        store_bin(p, active, block, scale, floor, bin, mine)
        return {mask = now.mask & ~mine, gate = now.gate}
      end)
    end).gate
  end

  -- K.meet of online.lua. active: a row, which exists below `last`.
  function E.meet(p, active, last, scale, blocks)
    local exists = k.lt(active, last)
    local row = k.select(exists, active, p.row_begin)
    local floor, gate = k.load(k.f32, p.floor, row), k.load(k.f32, p.emit_gate, row)
    local top = blocks[1].top
    for i = 2, #blocks do top = k.max(top, blocks[i].top) end
    local hit = k.ge(top, floor + gate) & exists  -- t rounded may be that where t is above it
    k.when(k.any(hit), function()
      k.when(hit, function()
        local above = gate
        for _, block in ipairs(blocks) do above = store_block(p, row, block, scale, floor, above) end
      end)
    end)
  end

  -- K.sum of online.lua: what these columns have of the LSE of an active row.
  function E.sum(p, active, sum)
    local first = B.first(sum.m, sum.s, p.log2_threshold, k.load(k.f32, p.floor, active))
    k.when(k.gt(B.gate(first), k.load(k.f32, p.emit_gate, active)), function() raise(p, active, first) end)
  end

  return E
end
