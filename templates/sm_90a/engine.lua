-- engine.lua (sm_90a): the matrix engine of sm_90a: tensor copies into an mbarrier ring, wgmma, warpgroups with roles.
--
--   C (M, N) += A (M, K) · B (N, K)ᵀ       fp32 accumulators in registers, each operand K-major or MN-major in memory
--
-- One producer thread of a warpgroup fills a ring of shared-memory stages (ring.lua); two consumer warpgroups multiply,
-- operands of 16 bits as they are (whole.lua), of 32 in bf16 terms that one more warpgroup makes of the ring
-- (terms.lua):
--   ping-pong     each a tile of its own, in turn: while one works on its finished tile, the other keeps the tensor
--                 cores busy. For long epilogues.
--   cooperative   half the rows of one tile each. For larger tiles, and for 32 bits.
-- Clusters of CTAs along the rows share the tiles of B: each loads its part and casts it to all. They take their units
-- of work in turn (units.lua).
--
-- K order. Stages and steps of 16 in ascending order: a score does not depend on where its row or column stands in a
-- tile, in the grid, or among the units.

return function(k, spec, options)
  local H = {}

  H.rows, H.columns, H.stages, H.cluster = options.rows, options.columns, options.stages, options.cluster
  H.cooperative = options.schedule == "cooperative"
  H.aside = options.aside                         -- two warps of the producer's have work of their own
  local wide, cooperative = spec.dtype == "fp32", H.cooperative
  H.box = wide and 32 or 64                       -- elements in 128 bytes
  H.depth = H.box                                 -- of a stage along K
  H.blocks = H.rows // (cooperative and 128 or 64) -- of 64 rows, the height of one wgmma, in one warpgroup
  H.accumulators = H.blocks * (H.columns // 2)
  H.a_bytes, H.b_bytes = H.rows * 128, H.columns * 128
  H.stage_bytes = H.a_bytes + H.b_bytes
  H.width, H.warps = H.columns, 8                 -- of an epilogue: columns at a time; warps that share its role
  local staging_bytes = H.warps * options.staging

  local units = k.import "units" (k, H)
  local mapped = k.import "mapped" (k, spec, H, units, options)
  local ring = k.import "ring" (k, H, units)
  local engine = wide and k.import "terms" (k, spec, H, ring, units, options) or k.import "whole" (k, spec, H, ring)
  H.threads = engine.warpgroups * 128
  H.shared_bytes = options.shared_bytes
  assert(H.shared_bytes == H.stages * H.stage_bytes + engine.bytes + staging_bytes + ring.barrier_bytes
    + engine.barrier_bytes + units.bytes, "what tune.lua counts is not what is laid out here")

  local warpgroup, lane, first_row

  -- First in a kernel's body. Nothing may leave the kernel before.
  local function begin()
    local base = k.shared(1024)
    local behind = base + H.stages * H.stage_bytes
    H.staging = behind + engine.bytes
    local barriers = H.staging + staging_bytes
    ring.place(base, barriers)
    engine.place(behind, barriers + ring.barrier_bytes)
    units.place(barriers + ring.barrier_bytes + engine.barrier_bytes)
    local warp = k.shuffle_idx(k.warp(), 0)       -- so that ptxas sees a role as one for the whole warp
    warpgroup = k.lshr(warp, 2)
    if spec.parts.short then mapped.clear_rows(base) end
    k.when(k.eq(k.tid(), 0), function()
      ring.begin(engine.arrivals)
      engine.begin()
      units.begin(H.cluster * (engine.warpgroups * 4 - 3)) -- of its warpgroup, only the producer's takes numbers
      k.mbarrier_fence()
      units.expect()
    end)
    if H.cluster > 1 then k.cluster_sync() else k.barrier() end
  end

  -- Behind a main loop: the thread's place anew, so that nothing of it lives in registers in between.
  function H.reread()
    local tid = k.reread_tid()
    lane = tid & 31
    local of_warp = (k.lshr(tid, 5) & 3) * 16
    first_row = of_warp + engine.row_of_lane(lane)
    if cooperative then first_row = first_row + k.lshr(tid, 7) * (H.blocks * 64) end
    H.lane, H.warp = lane, k.lshr(tid, 5)
  end
  function H.second() return k.ne(H.uniform(k.reread_tid() & 128), 0) end -- the second of the two consumer warpgroups

  -- First row of the 16 that this warp has in block w.
  function H.warp_row(w)
    local row = (H.warp & 3) * 16 + w * 64
    return cooperative and row + k.lshr(H.warp, 2) * (H.blocks * 64) or row
  end
  -- Row and column inside the tile of accumulator block w, half h (rows +8), column tile j of 8, element e.
  function H.row(w, h) return first_row + (w * 64 + h * 8) end
  function H.column(j, e) return (lane & 3) * 2 + (j * 8 + e) end
  -- Where that accumulator stands, of a tile with so many columns.
  function H.at(w, h, j, e, columns) return w * (columns or H.width) // 2 + 4 * j + 2 * h + e + 1 end

  -- Splits the warpgroups: produce() and dispatch() run in one thread each, consume() in two warpgroups. Where there is
  -- one that splits, produce() runs there as well: the same units and tiles, of which it splits what the producer
  -- loads.
  local function roles(produce, dispatch, consume, aside)
    local function as_producer()
      H.produce = ring.produce
      produce(ring.produce_units)
    end
    local function as_splitter()
      H.produce = engine.split
      produce(engine.split_units)
    end
    k.branch(k.eq(warpgroup, 2), function()
      k.registers_lower(engine.producer_registers)
      k.when(k.eq(k.tid(), 256), as_producer)
      k.when(k.eq(k.tid(), 288) & k.eq(H.rank(), 0), dispatch)
      if aside then k.when(k.ge(k.tid(), 320), aside) end
    end, function()
      local function as_consumer()
        k.registers_raise(engine.consumer_registers)
        mapped.in_whole_warps(consume)
      end
      if not engine.split then return as_consumer() end
      k.branch(k.eq(warpgroup, 3), function()
        k.registers_lower(engine.splitter_registers)
        as_splitter()
      end, as_consumer)
    end)
  end

  H.rasterise = units.rasterise
  -- The place of a tile that many tiles further, of so many steps each.
  function H.advance(index, tiles, steps) return engine.advance(index, tiles * steps) end

  ------------------------------------------------------------------------------------------------ consumers
  local TURN = 2                                  -- named barriers TURN and TURN + 1: which consumer multiplies next
  local GROUP = 4                                 -- GROUP and GROUP + 1: the threads that share a tile

  function H.own() return H.uniform(k.lshr(k.reread_tid(), 7)) end -- consumer warpgroup, 0 or 1
  function H.take_turn()
    if not cooperative then k.barrier_sync(H.own() + TURN, 256) end
  end
  function H.pass_turn()
    if not cooperative then k.barrier_arrive((H.own() ~ 1) + TURN, 256) end
  end
  -- Warpgroup 0 begins.
  local function first_turn()
    if not cooperative then
      k.when(k.eq(warpgroup, 1), function() k.barrier_arrive(TURN, 256) end)
    end
  end
  -- The threads that share a tile wait for each other.
  function H.tile_sync()
    if cooperative then k.barrier_sync(GROUP, 256) else k.barrier_sync(H.own() + GROUP, 128) end
  end

  H.skip = engine.skip
  -- Multiplies a tile, from a place in the ring on, of operands with these majors, and runs body(acc, first, state) ->
  -- state over its parts of H.width columns: their accumulators, and the first of them in the tile. Here it is one.
  -- columns: of the tile, if not all that fit
  function H.each_part(index, steps, a_major, b_major, state, body, columns)
    return body(engine.multiply(index, steps, a_major, b_major, columns), 0, state)
  end

  function H.kernel(entry, parts)
    local E = {begin = begin, first_turn = first_turn, roles = roles, idle = {first = 10, count = 2}}
    mapped.kernel(E, entry, parts)
  end

  return H
end
