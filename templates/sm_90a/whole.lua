-- whole.lua: 16-bit operands multiplied as they stand in the ring.
--
-- Stages of 64 and steps of 16 along K in ascending order, into one accumulator an element.

return function(k, spec, H, ring)
  local loads_more = H.aside or spec.parts.short  -- than two boxes that never change
  local E = {warpgroups = 3, bytes = 0, barrier_bytes = 0, producer_registers = loads_more and 40 or 24,
             consumer_registers = loads_more and 232 or 240}
  E.arrivals = H.cluster * (H.cooperative and 2 or 1) -- at the end of a stage: its consumers, in each CTA

  function E.row_of_lane(lane) return k.lshr(lane, 2) end -- of the first 8 that a warp has in a block
  function E.place() end
  function E.begin() end

  -- Rows of 128 bytes in groups of 8, 1024 bytes apart; MN-major, the next 64 of a row follow LEAD behind.
  local BOX = H.box * 128
  local LEAD = {k = 1, mn = BOX // 16}
  local STEP = {k = 2, mn = 16 * 128 // 16}       -- from one k16 to the next
  local function descriptor(low) return k.zext(k.i64, low) | (1 << 62 | (1024 >> 4) << 32) end

  -- A pipeline state moves by whole tiles, too: a number from 0 to 2·stages - 1.
  local function place(index)
    local again = k.ge(index, H.stages)
    return {stage = k.select(again, index - H.stages, index), parity = k.zext(k.i32, again)}
  end
  function E.advance(index, steps) return k.urem(index + steps, 2 * H.stages) end

  -- Threads 0 to cluster-1 signal that a stage is free, each in one CTA of the cluster; with a condition, where it
  -- holds.
  local function releaser()
    local own_thread = k.reread_tid() & 127
    local there = H.cluster > 1 and k.cluster_address(ring.empty, k.min(own_thread, H.cluster - 1)) or ring.empty
    local signals = k.lt(own_thread, H.cluster)
    return function(stage, condition)
      local arrive, holds = H.cluster > 1 and k.mbarrier_arrive_there or k.mbarrier_arrive, signals
      if condition then holds = signals & condition end
      arrive(there + stage * 8, holds)
    end
  end

  -- One tile from the ring position `index` on, of operands with these majors. Ping-pong passes the turn as soon as its
  -- last product is under way. columns: of the tile, if not all that fit
  function E.multiply(index, steps, a_major, b_major, columns)
    columns = columns or H.columns
    local acc = {}
    for i = 1, H.blocks * columns // 2 do acc[i] = k.const(k.f32, 0.0) end
    local start, release = place(index), releaser()
    local low = H.uniform(k.lshr(ring.base, 4) & 0x3fff) -- low words of stage 0's descriptors
    local a_low, b_low = low | LEAD[a_major] << 16, (low + H.a_bytes // 16) | LEAD[b_major] << 16
    if H.cooperative then a_low = a_low + H.own() * (H.blocks * BOX // 16) end
    local done = k.loop(k.const(k.i32, 0), steps, 1, {at = start, before = start.stage, acc = acc}, function(step, now)
      local stage = now.at.stage
      k.mbarrier_wait(ring.full + stage * 8, now.at.parity)
      local offset = stage * (H.stage_bytes // 16)
      local sum = k.wgmma {
        kind = spec.dtype, columns = columns, blocks = H.blocks, steps = H.depth // 16,
        a = descriptor(a_low + offset), b = descriptor(b_low + offset), a_major = a_major, b_major = b_major,
        a_step = STEP[a_major], b_step = STEP[b_major], a_block = BOX // 16, keep = k.gt(step, 0), into = now.acc,
        wait = 1,
      }
      release(now.before, k.gt(step, 0)) -- its products are complete: one stage may be in flight
      return {at = ring.next_place(now.at, H.stages), before = stage, acc = sum}
    end)
    H.pass_turn()
    acc = k.wgmma_wait(0, done.acc)
    release(done.before)
    return acc
  end

  -- In the place of multiply, of a tile without rows.
  function E.skip(index, steps)
    local release = releaser()
    k.loop(k.const(k.i32, 0), steps, 1, place(index), function(_, now)
      k.mbarrier_wait(ring.full + now.stage * 8, now.parity)
      release(now.stage)
      return ring.next_place(now, H.stages)
    end)
    H.pass_turn()
  end

  return E
end
