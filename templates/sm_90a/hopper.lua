-- hopper.lua: the matrix engine of sm_90a: tensor copies into an mbarrier ring, wgmma, warpgroups with roles.
--
--   C (BM, BN) += A (BM, K) · B (BN, K)ᵀ       A and B K-major, fp32 accumulators in registers
--
-- One warpgroup, one thread of it, feeds a ring of shared-memory stages; two others multiply, each a tile of its own, in
-- turn: while one reduces its finished tile, the other keeps the tensor cores busy. Clusters of CTAs along the rows
-- share the tiles of B: each loads its part and casts it to all.
--
-- K order. Stages of 64 and steps of 16 in ascending order into one accumulator an element: a score does not depend on
-- where its row or column stands in a tile, in the grid, or among the units.

return function(k, spec)
  local H = {}

  H.rows, H.columns, H.depth, H.stages = 128, 192, 64, 5
  H.cluster = 2
  H.threads = 3 * 128
  H.blocks = H.rows // 64                         -- of 64 rows, the height of one wgmma
  local each = H.columns // 2                     -- accumulators of one block and thread

  local a_bytes, b_bytes = H.rows * H.depth * 2, H.columns * H.depth * 2
  local stage_bytes = a_bytes + b_bytes
  H.shared_bytes = H.stages * stage_bytes + H.stages * 16

  -- Registers of a thread by role: 24 + 2·240 a lane of each of the three warpgroups fill the file of 512.
  local FEEDER, MULTIPLIER = 24, 240

  -- Shared memory of K-major tiles in rows of 128 bytes, swizzled in groups of 8 rows: those are 1024 bytes apart.
  local function descriptor(low) return k.zext(k.i64, low) | (1 << 62 | (1024 >> 4) << 32) end

  local base, full, empty
  local warpgroup, lane, thread                   -- thread: within the warpgroup

  -- First in a kernel's body. Nothing may leave the kernel before.
  function H.begin()
    base = k.shared(1024)
    full = base + H.stages * stage_bytes
    empty = full + H.stages * 8
    local warp = k.shuffle_idx(k.warp(), 0)       -- so that ptxas sees a role as one for the whole warp
    warpgroup, lane, thread = k.lshr(warp, 2), k.lane(), k.tid() & 127
    k.when(k.eq(k.tid(), 0), function()
      for stage = 0, H.stages - 1 do
        k.mbarrier_init(full + stage * 8, 1)
        k.mbarrier_init(empty + stage * 8, H.cluster) -- the multiplier of the tile, in each CTA of the cluster
      end
      k.mbarrier_fence()
    end)
    if H.cluster > 1 then k.cluster_sync() else k.barrier() end
  end

  -- Behind a main loop: the thread's place anew, so that nothing of it lives in registers in between.
  function H.reread()
    local tid = k.reread_tid()
    lane, thread = tid & 31, tid & 127
    H.lane = lane
  end
  function H.second() return k.ne(k.reread_tid() & 128, 0) end -- the second of the two that multiply

  function H.rank() return H.cluster > 1 and k.cluster_rank() or k.const(k.i32, 0) end

  -- Row and column inside the tile of accumulator block w, half h (rows +8), column tile j of 8, element e.
  function H.row(w, h) return (k.lshr(thread, 5) * 16 + k.lshr(lane, 2)) + (w * 64 + h * 8) end
  function H.column(j, e) return (lane & 3) * 2 + (j * 8 + e) end
  -- Where that accumulator stands.
  function H.at(w, h, j, e) return w * each + 4 * j + 2 * h + e + 1 end

  -- Splits the warpgroups: feed() runs in one thread, multiply() in two warpgroups.
  function H.roles(feed, multiply)
    k.branch(k.eq(warpgroup, 2), function()
      k.registers_lower(FEEDER)
      k.when(k.eq(k.tid(), 256), feed)
    end, function()
      k.registers_raise(MULTIPLIER)
      multiply()
    end)
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
  H.feed_start = function() return {stage = k.const(k.i32, 0), parity = k.const(k.i32, 1)} end

  -- Loads the stages of one tile: rows from `row` of map a, rows from `column` of map b.
  function H.feed(at, steps, a, row, b, column)
    local part, rank = H.columns // H.cluster, H.rank()
    local cast = H.cluster > 1 and (1 << H.cluster) - 1 or nil
    return k.loop(k.const(k.i32, 0), steps, 1, at, function(step, now)
      local ready = full + now.stage * 8
      k.mbarrier_wait(empty + now.stage * 8, now.parity)
      k.mbarrier_expect(ready, stage_bytes)
      local to = base + now.stage * stage_bytes
      k.tensor_copy(a, to, ready, step * H.depth, row)
      -- W passes once through L2 for all row bands of a group, hidden is read again and again
      k.tensor_copy(b, to + a_bytes + rank * (part * H.depth * 2), ready, step * H.depth, column + rank * part,
        {cast = cast, evict = "first"})
      return next_place(now)
    end)
  end

  -- Behind the last tile: a CTA must not end while its neighbour may still cast into it or arrive at its barriers.
  function H.feed_end(at)
    if H.cluster == 1 then return end
    for _ = 1, H.stages do
      k.mbarrier_wait(empty + at.stage * 8, at.parity)
      at = next_place(at)
    end
  end

  ------------------------------------------------------------------------------------------------ multiplying
  local TURN = 2                                  -- named barriers TURN and TURN + 1: whose turn it is to multiply

  local function own() return k.lshr(k.reread_tid(), 7) end
  function H.take_turn() k.barrier_sync(own() + TURN, 256) end
  function H.pass_turn() k.barrier_arrive((own() ~ 1) + TURN, 256) end
  -- Warpgroup 0 begins.
  function H.first_turn()
    k.when(k.eq(warpgroup, 1), function() k.barrier_arrive(TURN, 256) end)
  end

  -- Threads 0 to cluster-1 tell that a stage is free, each in one CTA of the cluster. there: of barrier 0 in that CTA.
  local function release(there, stage, condition)
    local arrive = H.cluster > 1 and k.mbarrier_arrive_there or k.mbarrier_arrive
    arrive(there + stage * 8, condition)
  end

  -- One tile from the ring position `index` on; passes the turn as soon as its last product is under way.
  function H.multiply(index, steps)
    local acc = {}
    for i = 1, H.blocks * each do acc[i] = k.const(k.f32, 0.0) end
    local start = place(index)
    local own_thread = k.reread_tid() & 127
    local there = H.cluster > 1 and k.cluster_address(empty, k.min(own_thread, H.cluster - 1)) or empty
    local tells = k.lt(own_thread, H.cluster)
    local first = k.lshr(base, 4) & 0x3fff | 1 << 16  -- low word of stage 0's descriptor of A
    local done = k.loop(k.const(k.i32, 0), steps, 1, {at = start, before = start.stage, acc = acc}, function(step, now)
      local stage = now.at.stage
      k.mbarrier_wait(full + stage * 8, now.at.parity)
      local low = first + stage * (stage_bytes // 16)
      local sum = k.wgmma {
        kind = spec.dtype, columns = H.columns, blocks = H.blocks, steps = H.depth // 16,
        a = descriptor(low), b = descriptor(low + a_bytes // 16), a_major = "k", b_major = "k",
        a_step = 2, b_step = 2, a_block = 64 * 128 // 16, keep = k.gt(step, 0), into = now.acc, wait = 1,
      }
      release(there, now.before, tells & k.gt(step, 0))          -- its products are complete: one stage may be in flight
      return {at = next_place(now.at), before = stage, acc = sum}
    end)
    H.pass_turn()
    acc = k.wgmma_wait(0, done.acc)
    release(there, done.before, tells)
    return acc
  end

  return H
end
