-- hopper.lua: the matrix engine of sm_90a: tensor copies into an mbarrier ring, wgmma, warpgroups with roles.
--
--   C (M, N) += A (M, K) · B (N, K)ᵀ       fp32 accumulators in registers, each operand K-major or MN-major in memory
--
-- One warpgroup, one thread of it, feeds a ring of shared-memory stages; two others multiply:
--   ping-pong     each a tile of its own, in turn: while one works on its finished tile, the other keeps the tensor cores
--                 busy. For long epilogues.
--   cooperative   half the rows of one tile each. For larger tiles.
-- Clusters of CTAs along the rows share the tiles of B: each loads its part and casts it to all.
--
-- K order. Stages of 64 and steps of 16 in ascending order into one accumulator an element: a score does not depend on
-- where its row or column stands in a tile, in the grid, or among the units.
--
-- Units of work come from a counter that all clusters share, in order, so that neighbours work side by side and none
-- waits for a multiprocessor that other work holds. One thread of the cluster's first CTA takes the next number as soon
-- as everyone has begun the one before, and posts it in every CTA.

return function(k, spec, options)
  local H = {}

  H.rows, H.columns, H.stages, H.cluster = options.rows, options.columns, options.stages, options.cluster
  H.depth = 64
  H.threads = 3 * 128
  local cooperative = options.schedule == "cooperative"
  H.blocks = H.rows // (cooperative and 128 or 64) -- of 64 rows, the height of one wgmma, in one warpgroup
  H.accumulators = H.blocks * (H.columns // 2)
  local each = H.columns // 2                     -- accumulators of one block and thread

  local a_bytes, b_bytes = H.rows * H.depth * 2, H.columns * H.depth * 2
  local stage_bytes = a_bytes + b_bytes
  local staging_bytes = 8 * (options.staging or 0) -- for the epilogues of the eight warps that multiply
  H.shared_bytes = H.stages * stage_bytes + staging_bytes + H.stages * 16 + 24

  -- Registers of a thread by role: the file has 512 for one thread of each of the three warpgroups together.
  local FEEDER, MULTIPLIER = 24, 240

  -- Shared memory of an operand in rows of 128 bytes, swizzled in groups of 8 rows, which are 1024 bytes apart. A box
  -- holds 64 elements along a row. MN-major, a row runs along M or N, and the next 64 of it follow LEAD behind.
  local BOX = 64 * 128
  local LEAD = {k = 1, mn = BOX // 16}
  local STEP = {k = 2, mn = 16 * 128 // 16}       -- from one k16 to the next
  local function descriptor(low) return k.zext(k.i64, low) | (1 << 62 | (1024 >> 4) << 32) end

  -- A value that is the same in all lanes. What the role that multiplies decides by comes from such values alone: loops
  -- and descriptors then live in uniform registers, which saves a third of the instructions. The roles of one thread
  -- cannot ask for it.
  local whole_warps = false
  function H.uniform(value) return whole_warps and k.uniform(value) or value end

  local base, full, empty, posted, taken, number
  local warpgroup, lane, first_row

  -- A number comes to both CTAs of a cluster as four bytes that `posted` counts, to a CTA alone as an arrival.
  local function expect_number()
    if H.cluster > 1 then k.mbarrier_expect(posted, 4) end
  end

  -- First in a kernel's body. Nothing may leave the kernel before.
  function H.begin()
    base = k.shared(1024)
    H.staging = base + H.stages * stage_bytes
    full = H.staging + staging_bytes
    empty = full + H.stages * 8
    posted = empty + H.stages * 8                 -- the number of the next unit stands in `number`
    taken = posted + 8                            -- all have read it; used in the first CTA of the cluster
    number = taken + 8
    local warp = k.shuffle_idx(k.warp(), 0)       -- so that ptxas sees a role as one for the whole warp
    warpgroup = k.lshr(warp, 2)
    k.when(k.eq(k.tid(), 0), function()
      for stage = 0, H.stages - 1 do
        k.mbarrier_init(full + stage * 8, 1)
        k.mbarrier_init(empty + stage * 8, H.cluster * (cooperative and 2 or 1)) -- who multiplies it, in each CTA
      end
      k.mbarrier_init(posted, 1)
      k.mbarrier_init(taken, H.cluster * 9)       -- the feeder and eight warps, in each CTA
      k.mbarrier_fence()
      expect_number()
    end)
    if H.cluster > 1 then k.cluster_sync() else k.barrier() end
  end

  -- Behind a main loop: the thread's place anew, so that nothing of it lives in registers in between.
  function H.reread()
    local tid = k.reread_tid()
    lane = tid & 31
    first_row = (k.lshr(tid, 5) & 3) * 16 + k.lshr(lane, 2)
    if cooperative then first_row = first_row + k.lshr(tid, 7) * (H.blocks * 64) end
    H.lane, H.warp = lane, k.lshr(tid, 5)
  end
  function H.second() return k.ne(H.uniform(k.reread_tid() & 128), 0) end -- the second of the two that multiply

  function H.rank() return H.cluster > 1 and k.cluster_rank() or k.const(k.i32, 0) end

  -- First row of the 16 that this warp has in block w.
  function H.warp_row(w)
    local row = (H.warp & 3) * 16 + w * 64
    return cooperative and row + k.lshr(H.warp, 2) * (H.blocks * 64) or row
  end
  -- Row and column inside the tile of accumulator block w, half h (rows +8), column tile j of 8, element e.
  function H.row(w, h) return first_row + (w * 64 + h * 8) end
  function H.column(j, e) return (lane & 3) * 2 + (j * 8 + e) end
  -- Where that accumulator stands.
  function H.at(w, h, j, e) return w * each + 4 * j + 2 * h + e + 1 end

  -- Splits the warpgroups: feed() and dispatch() run in one thread each, multiply() in two warpgroups.
  function H.roles(feed, dispatch, multiply)
    k.branch(k.eq(warpgroup, 2), function()
      k.registers_lower(FEEDER)
      k.when(k.eq(k.tid(), 256), feed)
      k.when(k.eq(k.tid(), 288) & k.eq(H.rank(), 0), dispatch)
    end, function()
      k.registers_raise(MULTIPLIER)
      whole_warps = true
      multiply()
      whole_warps = false
    end)
  end

  ------------------------------------------------------------------------------------------------ units
  -- Hands out the numbers below `units`, and one beyond to every cluster. *turn is 0 before and after.
  function H.dispatch(turn, units)
    local function post()
      local unit = k.atomic_next(turn)
      if H.cluster == 1 then
        k.shared_store(number, unit)
        k.mbarrier_arrive(posted, k.const(k.i1, true))
      else
        for rank = 0, H.cluster - 1 do
          local function there(address) return k.cluster_address(address, k.const(k.i32, rank)) end
          k.store_there(there(number), unit, there(posted))
        end
      end
      return unit
    end
    local last = k.while_({unit = post(), parity = k.const(k.i32, 0)}, function(now) return k.lt(now.unit, units) end,
      function(now)
        k.mbarrier_wait(taken, now.parity)
        return {unit = post(), parity = now.parity ~ 1}
      end)
    local clusters = k.udiv(k.reread_nctaid(), H.cluster)
    k.when(k.eq(last.unit, units + clusters - 1), function() k.store(turn, 0, k.const(k.i32, 0)) end)
  end

  -- The next unit, in the feeder's thread or in all threads of a warp. parity: 0 for the first, then in turn.
  local function take(parity, count, feeds)
    k.mbarrier_wait(posted, parity)
    local unit = H.uniform(k.shared_load(k.i32, number))
    if feeds then expect_number() end
    local tells = k.lt(unit, count())             -- behind the last unit the first CTA may be gone
    if not feeds then tells = tells & k.eq(k.reread_tid() & 31, 0) end
    if H.cluster == 1 then k.mbarrier_arrive(taken, tells)
    else k.mbarrier_arrive_there(k.cluster_address(taken, k.const(k.i32, 0)), tells) end
    return unit
  end

  -- Runs body(unit, state) -> state over the units of this cluster. count(): how many units the grid has.
  local function over_units(count, state, body, feeds)
    local start = {unit = take(k.const(k.i32, 0), count, feeds), parity = k.const(k.i32, 1), state = state}
    return k.while_(start, function(now) return k.lt(now.unit, count()) end, function(now)
      local after = body(now.unit, now.state)
      return {unit = take(now.parity, count, feeds), parity = now.parity ~ 1, state = after}
    end).state
  end
  function H.multiply_units(count, state, body) over_units(count, state, body, false) end

  -- Band and column of a unit: `raster` bands at a time walk along the columns together, for what they share in L2.
  function H.walk(unit, bands, across, raster)
    local group = across * raster
    local sweep = unit // group
    local inside = unit - sweep * group
    local height = k.min(bands - sweep * raster, raster)
    local column = inside // height
    return sweep * raster + (inside - column * height), column
  end

  -- A place in the ring: {stage, parity} of its next use. It moves by whole tiles, too.
  local function place(index) -- 0 to 2·stages - 1
    local again = k.ge(index, H.stages)
    return {stage = k.select(again, index - H.stages, index), parity = k.zext(k.i32, again)}
  end
  local function next_place(at)
    local up = at.stage + 1
    local wrap = k.eq(up, H.stages)
    return {stage = k.select(wrap, 0, up), parity = at.parity ~ k.zext(k.i32, wrap)}
  end
  -- Position of the stream behind `steps` more stages, as an index for place().
  function H.advance(index, steps) return k.urem(index + steps, 2 * H.stages) end

  ------------------------------------------------------------------------------------------------ feeding
  local function load(operand, part, offset, to, ready, step, cast)
    local height = operand.major == "mn" and 64 or operand.box or part
    for i = 0, part // height - 1 do
      local x, y = step * H.depth, operand.at + offset + i * height
      if operand.major == "mn" then x, y = y, x end
      k.tensor_copy(operand.map, to + i * (height * 128), ready, x, y, {cast = cast, evict = operand.evict})
    end
  end

  -- Loads the stages of one tile. a, b: {map, major, at, box, evict}: from row `at` of C's rows or columns on, in boxes of
  -- `box` rows (default: all that a CTA loads), MN-major of 64 columns.
  function H.feed(at, steps, a, b)
    local part, rank = H.columns // H.cluster, H.rank()
    local cast = H.cluster > 1 and (1 << H.cluster) - 1 or nil
    return k.loop(k.const(k.i32, 0), steps, 1, at, function(step, now)
      local ready = full + now.stage * 8
      k.mbarrier_wait(empty + now.stage * 8, now.parity)
      k.mbarrier_expect(ready, stage_bytes)
      local to = base + now.stage * stage_bytes
      load(a, H.rows, 0, to, ready, step, nil)
      load(b, part, rank * part, to + a_bytes + rank * (part * 128), ready, step, cast)
      return next_place(now)
    end)
  end

  -- Runs body(unit, place in the ring) -> place over the units. Behind the last: a CTA must not end while its neighbour
  -- may still cast into it or arrive at its barriers.
  function H.feed_units(count, body)
    local at = over_units(count, {stage = k.const(k.i32, 0), parity = k.const(k.i32, 1)}, body, true)
    if H.cluster == 1 then return end
    for _ = 1, H.stages do
      k.mbarrier_wait(empty + at.stage * 8, at.parity)
      at = next_place(at)
    end
  end

  ------------------------------------------------------------------------------------------------ multiplying
  local TURN = 2                                  -- named barriers TURN and TURN + 1: whose turn it is to multiply
  local GROUP = 4                                 -- GROUP and GROUP + 1: the threads that share a tile

  local function own() return H.uniform(k.lshr(k.reread_tid(), 7)) end
  function H.take_turn()
    if not cooperative then k.barrier_sync(own() + TURN, 256) end
  end
  function H.pass_turn()
    if not cooperative then k.barrier_arrive((own() ~ 1) + TURN, 256) end
  end
  -- Warpgroup 0 begins.
  function H.first_turn()
    if not cooperative then
      k.when(k.eq(warpgroup, 1), function() k.barrier_arrive(TURN, 256) end)
    end
  end
  -- The threads that share a tile wait for each other.
  function H.tile_sync()
    if cooperative then k.barrier_sync(GROUP, 256) else k.barrier_sync(own() + GROUP, 128) end
  end

  -- Threads 0 to cluster-1 tell that a stage is free, each in one CTA of the cluster. there: of barrier 0 in that CTA.
  local function release(there, stage, condition)
    local arrive = H.cluster > 1 and k.mbarrier_arrive_there or k.mbarrier_arrive
    arrive(there + stage * 8, condition)
  end

  -- One tile from the ring position `index` on, of operands with these majors. Ping-pong passes the turn as soon as its
  -- last product is under way.
  function H.multiply(index, steps, a_major, b_major)
    local acc = {}
    for i = 1, H.accumulators do acc[i] = k.const(k.f32, 0.0) end
    local start = place(index)
    local own_thread = k.reread_tid() & 127
    local there = H.cluster > 1 and k.cluster_address(empty, k.min(own_thread, H.cluster - 1)) or empty
    local tells = k.lt(own_thread, H.cluster)
    local low = H.uniform(k.lshr(base, 4) & 0x3fff) -- low words of stage 0's descriptors
    local a_low, b_low = low | LEAD[a_major] << 16, (low + a_bytes // 16) | LEAD[b_major] << 16
    if cooperative then a_low = a_low + own() * (H.blocks * BOX // 16) end
    local done = k.loop(k.const(k.i32, 0), steps, 1, {at = start, before = start.stage, acc = acc}, function(step, now)
      local stage = now.at.stage
      k.mbarrier_wait(full + stage * 8, now.at.parity)
      local offset = stage * (stage_bytes // 16)
      local sum = k.wgmma {
        kind = spec.dtype, columns = H.columns, blocks = H.blocks, steps = H.depth // 16,
        a = descriptor(a_low + offset), b = descriptor(b_low + offset), a_major = a_major, b_major = b_major,
        a_step = STEP[a_major], b_step = STEP[b_major], a_block = BOX // 16, keep = k.gt(step, 0), into = now.acc,
        wait = 1,
      }
      release(there, now.before, tells & k.gt(step, 0))          -- its products are complete: one stage may be in flight
      return {at = next_place(now.at), before = stage, acc = sum}
    end)
    H.pass_turn()
    acc = k.wgmma_wait(0, done.acc)
    release(there, done.before, tells)
    return acc
  end

  -- The accumulators of a tile of raw scores plus the bias of their columns, if there is one. last: no column beyond it.
  function H.add_bias(acc, bias, tile_column, last)
    if not spec.bias then return acc end
    local element = ({bf16 = k.bf16, fp16 = k.f16})[spec.dtype]
    return k.branch(k.is_null(bias), function() return acc end, function()
      local out = {}
      for j = 0, H.columns // 8 - 1 do
        for e = 0, 1 do
          local b = k.convert(k.f32, k.load(element, bias, k.min(tile_column + H.column(j, e), last), {const = true}))
          for w = 0, H.blocks - 1 do
            for h = 0, 1 do
              local at = H.at(w, h, j, e)
              out[at] = acc[at] + b
            end
          end
        end
      end
      return out
    end)
  end

  return H
end
