-- emission.lua: lists the columns of a row whose score is above its floor: part emit of forward.
--
--   t - floor[a] > gate[a], one fused multiply-add: (v, t - floor[a]) -> place count[a][bin]++ of the bin (bins.lua)
--
-- The gate of a row rises from 0 over bins that it does not need: those up to one that overflows, and those that are
-- below the threshold by what leaves have of its LSE. So a row whose floor is far too low, or that is flat, costs little
-- once some of its columns are known; and a gate that is read too early costs an addition, no more. Nothing waits for that
-- of a crowded bin: one that overflows if an eighth of the row is as a thread's part of a block.
--
-- An addition takes about a microsecond to give its place. So the columns that a warp finds in a tile wait in shared
-- memory, its queue, and lanes make the additions of many at a time.

local CROWD = 5        -- columns, of one bin, of a thread's part of a block: 16 at most
local CROWDED = 7      -- log2 of the columns of a row for each of which there is one: 16 times 8
-- Columns of the queue that a lane makes additions for before it waits. With a softcap ptxas spills more for each.
local TOGETHER, TOGETHER_CAPPED = 4, 1
local ENTRY = 8        -- bytes in the queue: row and column, 16 bits each, from where the tile begins; score less floor

-- M: the engine; its warp_staging() is where the warp has warp_staging_bytes of shared memory
return function(k, spec, M)
  local S, B = k.import "score" (k), k.import "bins" (k)
  local PLACES, together = M.warp_staging_bytes // ENTRY, spec.softcap and TOGETHER_CAPPED or TOGETHER
  local i64 = function(v) return k.convert(k.i64, v) end
  local E = {}
  local queued           -- columns in the queue; nil before the first row of a tile

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

  ------------------------------------------------------------------------------------------------ the queue
  -- In the vocabulary, of a column of the launch.
  local in_slices = spec.parts.top or spec.parts.columns
  local function whole_column(p, column) return in_slices and p.column_begin + column or column end

  -- Stores the columns of the queue in their bins, as many as those have places for. tile: where it begins
  local function store_queue(p, tile, queued)
    local function at(i)                              -- read twice, as there are no registers to keep it in
      local exists = k.lt(i, queued)
      local entry = k.shared_load_vector(k.i32, 2, M.warp_staging() + k.select(exists, i, 0) * ENTRY)
      return exists, tile.row + k.lshr(entry[1], 16), B.of(k.bitcast(k.f32, entry[2])), entry
    end
    k.warp_sync()
    k.loop(M.lane, queued, 32 * together, nil, function(i)
      local slots = {}
      for j = 1, together do
        local exists, row, bin = at(i + (j - 1) * 32)
        slots[j] = k.branch(exists, function() return k.atomic_add(p.emit_count, row * k.abi.EMIT_BINS + bin, 1) end,
          function() return k.const(k.i32, 0) end)
      end
      for j, slot in ipairs(slots) do
        local exists, row, bin, entry = at(i + (j - 1) * 32)
        local places, first = B.places(bin, p.emit_capacity)
        k.when(exists, function()
          k.branch(k.lt(slot, places), function()
            local place = i64(row) * i64(p.emit_capacity) + i64(first + slot)
            k.store_vector(p.emit_entry, place, {whole_column(p, tile.column + (entry[1] & 0xffff)), entry[2]})
          end, function() raise(p, row, bin + 1) end)
        end)
      end
    end)
    k.warp_sync()                                     -- before the queue is written again
  end

  -- Queues the columns of the lanes' masks of a block: of each its first, then of each its next. Returns `queued`.
  local function queue(p, tile, row, block, mask, scale, floor, queued)
    return k.while_({mask = mask, queued = queued}, function(now) return k.any(k.ne(now.mask, 0)) end, function(now)
      local has = k.ne(now.mask, 0)
      local having, i = k.ballot(has), first_of(now.mask)
      k.when(has, function()
        local place = now.queued + k.popcount(having & ((k.const(k.i32, 1) << M.lane) - 1))
        local column = block.column - tile.column + ((k.lshr(i, 1) << 3) | (i & 1))
        local above = k.fma(S.pick(block.y, i), scale, -floor)
        k.shared_store_vector(M.warp_staging() + place * ENTRY, {(row - tile.row) << 16 | column, k.bitcast(k.i32, above)})
      end)
      local queued = now.queued + k.popcount(having)
      return {mask = now.mask & (now.mask - 1), queued = k.branch(k.gt(queued, PLACES - 32), function()
        store_queue(p, tile, queued)
        return k.const(k.i32, 0)
      end, function() return queued end)}
    end).queued
  end

  ------------------------------------------------------------------------------------------------ crowded bins
  -- A bin of which a thread's part of a block has so many, where as many everywhere would be more than its places.
  local function is_crowded(p, bin, count)
    local places, columns = B.places(bin, p.emit_capacity), in_slices and p.columns or p.vocab_valid
    return k.ge(count, CROWD) & k.gt(k.lshr(columns, CROWDED) * count, places)
  end

  -- The gate that a block's crowded bins leave a row, which they are given up for.
  local function leave_crowded(p, row, block, scale, floor, gate)
    local function above(gate) return mask_of(block, scale, floor, function(score) return k.gt(score, gate) end) end
    return k.while_({mask = above(gate), gate = gate}, function(now) return k.ge(k.popcount(now.mask), CROWD) end,
      function(now)
        local bin = B.of(k.fma(S.pick(block.y, first_of(now.mask)), scale, -floor))
        local low, high = B.edge(bin), B.edge(bin + 1)
        local mine = now.mask & mask_of(block, scale, floor, function(score)
          return k.ge(score, low) & ~k.ge(score, high)
        end)
        return k.branch(is_crowded(p, bin, k.popcount(mine)), function()
          local gate = k.max(now.gate, B.gate(bin + 1))
          k.atomic_add(p.emit_count, row * k.abi.EMIT_BINS + bin, p.emit_capacity)
          raise(p, row, bin + 1)
          return {mask = now.mask & above(gate), gate = gate}
        end, function() return {mask = now.mask & ~mine, gate = now.gate} end)
      end).gate
  end

  ------------------------------------------------------------------------------------------------ hooks
  -- K.meet of online.lua. active: a row, which exists below `last`.
  function E.meet(p, active, last, scale, blocks, tile)
    local exists = k.lt(active, last)
    local row = k.select(exists, active, p.row_begin)
    local floor, gate = k.load(k.f32, p.floor, row), k.load(k.f32, p.emit_gate, row)
    local top = blocks[1].top
    for i = 2, #blocks do top = k.max(top, blocks[i].top) end
    local hit = k.ge(top, floor + gate) & exists  -- t rounded may be that where t is above it
    queued = queued or k.const(k.i32, 0)
    queued = k.branch(k.any(hit), function()
      local gate = k.branch(hit, function()
        local left = gate
        for _, block in ipairs(blocks) do left = leave_crowded(p, row, block, scale, floor, left) end
        return left
      end, function() return gate end)
      local now = queued
      for _, block in ipairs(blocks) do
        local mask = mask_of(block, scale, floor, function(score) return k.gt(score, gate) end)
        now = queue(p, tile, row, block, k.select(hit, mask, 0), scale, floor, now)
      end
      return now
    end, function() return queued end)
  end

  -- K.met
  function E.met(p, tile)
    local last = queued
    queued = nil
    k.when(k.gt(last, 0), function() store_queue(p, tile, last) end)
  end

  -- K.sum of online.lua: what these columns have of the LSE of an active row.
  function E.sum(p, active, sum)
    local first = B.first(sum.m, sum.s, p.log2_threshold, k.load(k.f32, p.floor, active))
    k.when(k.gt(B.gate(first), k.load(k.f32, p.emit_gate, active)), function() raise(p, active, first) end)
  end

  return E
end
