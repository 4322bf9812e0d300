-- engine.lua (sm_100f): tensor copies into an mbarrier ring, tcgen05 from there into tensor memory, warps with roles.
--
--   C (M, N) += A (M, K) · B (N, K)ᵀ       fp32 sums in tensor memory, two tiles in turn; operands of 16 bits
--
-- Warps 0 to 3 are the epilogue: they take a finished tile out of tensor memory, H.width columns at a time, while the
-- next one is multiplied. Of warp 4 one thread loads, of warp 5 one hands out units, of warp 6 one multiplies; warp 7
-- has no role. Loads of 16x256b lay sums out as wgmma does: row lane/4 + 8h and columns 2(lane mod 4) + e of each 8.
--
-- A pair is a cluster of two CTAs that multiply as one: each loads its rows of A and half of the columns of B, its
-- first CTA multiplies for both, and each has the sums of its rows in its own tensor memory. Other clusters share B as
-- on sm_90a (ring.lua). Whatever the cluster, a score is summed in the K order of sm_90a.

return function(k, spec, options)
  local H = {}
  H.rows, H.columns, H.stages, H.cluster = options.rows, options.columns, options.stages, options.cluster
  H.pair, H.aside = options.pair, options.aside
  local CTAS, SLOTS, ALL = H.pair and 2 or 1, 2, (1 << H.cluster) - 1 -- that multiply as one; tiles; CTAs of a cluster
  H.box, H.depth = 64, 64                         -- elements in 128 bytes; of a stage along K
  H.width, H.warps, H.blocks = options.width, options.warps, 2 -- of an epilogue: columns at a time; 16 rows of a warp
  H.accumulators = H.blocks * H.width // 2
  H.a_bytes, H.b_bytes = H.rows * 128, H.columns // CTAS * 128
  H.stage_bytes = H.a_bytes + H.b_bytes
  H.threads, H.shared_bytes = 256, options.shared_bytes

  local units = k.import "units" (k, H)
  local mapped = k.import "mapped" (k, spec, H, units, options)
  local ring = k.import "ring" (k, H, units)
  assert(H.shared_bytes == H.stages * H.stage_bytes + H.warps * options.staging + ring.barrier_bytes + SLOTS * 16 + 8
    + units.bytes, "what tune.lua counts is not what is laid out here")

  local full, empty, sums                         -- of slot 0: its tile is there; it is free; its first column
  local warp, lane, first_row

  local function all_sync() if H.cluster > 1 then k.cluster_sync() else k.barrier() end end
  -- Hands tensor memory on to the threads behind the barrier.
  local function tensor_sync()
    k.tmem_before()
    all_sync()
    k.tmem_after()
  end
  local tensor_columns = 32                       -- a power of 2
  while tensor_columns < SLOTS * H.columns do tensor_columns = tensor_columns * 2 end

  -- First in a kernel's body. Nothing may leave the kernel before `finish`.
  local function begin()
    local base = k.shared(1024)
    H.staging = base + H.stages * H.stage_bytes
    local barriers = H.staging + H.warps * options.staging
    ring.place(base, barriers)
    full = barriers + ring.barrier_bytes
    empty = full + SLOTS * 8
    local address = empty + SLOTS * 8             -- where tensor memory is told
    units.place(address + 8)
    warp = k.shuffle_idx(k.warp(), 0)
    if spec.parts.short then mapped.clear_rows(base) end
    k.when(k.eq(k.tid(), 0), function()
      ring.begin(H.pair and 1 or H.cluster)       -- who multiplies
      for slot = 0, SLOTS - 1 do
        k.mbarrier_init(full + slot * 8, 1)
        k.mbarrier_init(empty + slot * 8, H.warps * CTAS)
      end
      local multipliers = H.pair and 1 or H.cluster
      units.begin(H.cluster * (H.warps + 1) + multipliers) -- epilogue's warps, threads that load and multiply
      k.mbarrier_fence()
      units.expect()
    end)
    if H.cluster > 1 then k.cluster_sync() end
    k.when(k.eq(warp, 6), function() k.tmem_alloc(CTAS, address, k.const(k.i32, tensor_columns)) end)
    tensor_sync()
    sums = k.shared_load(k.i32, address)
  end

  local function finish()
    k.warp_sync()                                 -- lanes that had a role, and those that had none
    tensor_sync()
    k.when(k.eq(warp, 6), function() k.tmem_free(CTAS, sums, k.const(k.i32, tensor_columns)) end)
  end

  -- The thread's place anew, so that nothing of it lives in registers in between.
  function H.reread()
    local tid = k.reread_tid()
    lane = tid & 31
    H.lane, H.warp = lane, k.lshr(tid, 5)
    first_row = H.warp * 32 + k.lshr(lane, 2)
  end

  -- First row of the 16 that this warp has in block w.
  function H.warp_row(w) return H.warp * 32 + w * 16 end
  -- Row in the tile of block w, half h (rows + 8); column in the part of column tile j of 8, element e; where that sum
  -- stands.
  function H.row(w, h) return first_row + (w * 16 + h * 8) end
  function H.column(j, e) return (lane & 3) * 2 + (j * 8 + e) end
  function H.at(w, h, j, e) return w * H.width // 2 + 4 * j + 2 * h + e + 1 end

  ------------------------------------------------------------------------------------------------ multiplying
  -- Rows of 128 bytes in groups of 8, 1024 bytes apart; MN-major, the next 64 of a row follow LEAD behind.
  local BOX = H.box * 128
  local LEAD = {k = 1, mn = BOX // 16}
  local STEP = {k = 2, mn = 16 * 128 // 16}       -- from one k16 to the next
  local function descriptor(low) return k.zext(k.i64, low) | (1 << 62 | 1 << 46 | (1024 >> 4) << 32) end
  -- Arrives at a barrier, there in all CTAs of the mask, once the products of this thread so far are done.
  local function commit(barrier, mask)
    if mask > 1 then k.tmem_commit_cast(CTAS, barrier, k.const(k.i32, mask)) else k.tmem_commit(CTAS, barrier) end
  end

  -- In the place of ring.produce, for the same tiles: multiplies what that loads. at: {stage, parity, slot, turn}
  local function multiply(at, steps, a, b, columns)
    columns = columns or H.columns
    k.mbarrier_wait(empty + at.slot * 8, at.turn)
    k.tmem_after()
    local low = k.lshr(ring.base, 4) & 0x3fff
    local a_low, b_low = low | LEAD[a.major] << 16, (low + H.a_bytes // 16) | LEAD[b.major] << 16
    local into = sums + at.slot * H.columns
    local place = k.loop(k.const(k.i32, 0), steps, 1, {stage = at.stage, parity = at.parity}, function(step, now)
      k.mbarrier_wait(ring.full + now.stage * 8, now.parity)
      k.tmem_after()
      local offset = now.stage * (H.stage_bytes // 16)
      k.tmem_multiply {
        ctas = CTAS, kind = spec.dtype, columns = columns, steps = H.depth // 16,
        a = descriptor(a_low + offset), b = descriptor(b_low + offset), a_major = a.major, b_major = b.major,
        a_step = STEP[a.major], b_step = STEP[b.major], keep = k.gt(step, 0), into = into,
      }
      commit(ring.empty + now.stage * 8, ALL)
      return ring.next_place(now, H.stages)
    end)
    commit(full + at.slot * 8, H.pair and ALL or 1)
    local next = ring.next_place({stage = at.slot, parity = at.turn}, SLOTS)
    return {stage = place.stage, parity = place.parity, slot = next.stage, turn = next.parity}
  end

  local function multiply_units(problem, body)
    local zero = k.const(k.i32, 0)
    units.over(problem, {stage = zero, parity = zero, slot = zero, turn = k.const(k.i32, 1)}, body, "thread")
  end

  -- Splits the warps. produce() runs in two threads: the same units and tiles, which one loads and the other
  -- multiplies.
  local function roles(produce, dispatch, consume, aside)
    k.branch(k.lt(warp, H.warps), function() mapped.in_whole_warps(consume) end, function()
      k.when(k.eq(k.tid(), 128), function()
        H.produce = ring.produce
        produce(ring.produce_units)
      end)
      k.when(k.eq(k.tid(), 160) & k.eq(H.rank(), 0), dispatch)
      local multiplies = k.eq(k.tid(), 192)
      if H.pair then multiplies = multiplies & k.eq(H.rank(), 0) end
      k.when(multiplies, function()
        H.produce = multiply
        produce(multiply_units)
      end)
      if aside then k.when(k.ge(k.tid(), 224), aside) end
    end)
    finish()
  end

  ------------------------------------------------------------------------------------------------ the epilogue
  H.rasterise = units.rasterise
  -- The place of a tile that many tiles further: a number of tiles, modulo twice the slots.
  function H.advance(index, tiles) return k.urem(index + tiles, 2 * SLOTS) end
  function H.take_turn() end
  function H.pass_turn() end
  -- The threads that share a tile wait for each other.
  function H.tile_sync() k.barrier_sync(4, H.warps * 32) end

  local function slot_of(index) return k.urem(index, SLOTS) end
  local function await(index)
    k.mbarrier_wait(full + slot_of(index) * 8, k.udiv(index, SLOTS) & 1)
    k.tmem_after()
  end
  local function release(index)
    k.tmem_before()
    k.warp_sync()
    local there, signals = empty + slot_of(index) * 8, k.eq(k.reread_tid() & 31, 0)
    if H.pair then k.mbarrier_arrive_there(k.cluster_address(there, k.const(k.i32, 0)), signals)
    else k.mbarrier_arrive(there, signals) end
  end

  -- As on sm_90a, of a tile that another thread multiplies: its parts one after the other.
  function H.each_part(index, _, _, _, state, body, columns)
    await(index)
    local after = k.loop(k.const(k.i32, 0), (columns or H.columns) // H.width, 1, state, function(part, now)
      local lanes = k.lshr(k.reread_tid(), 5) << 21 -- 32 a warp, in the upper half of an address
      return body(k.tmem_load(sums + lanes + slot_of(index) * H.columns + part * H.width, H.width), part * H.width, now)
    end)
    release(index)
    return after
  end
  -- In its place, of a tile without rows.
  function H.skip(index)
    await(index)
    release(index)
  end

  function H.kernel(entry, parts)
    local E = {begin = begin, first_turn = function() end, roles = roles, idle = {first = 7, count = 1}}
    mapped.kernel(E, entry, parts)
  end

  return H
end
