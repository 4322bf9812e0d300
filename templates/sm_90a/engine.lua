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
  local staging_bytes = 8 * options.staging -- for the epilogues of the eight consumer warps
  H.warp_staging_bytes = options.staging

  -- A value that is the same in all lanes. What the consumer role decides by comes from such values alone: its
  -- loops and descriptors then live in uniform registers, which saves a third of the instructions. Roles of one thread
  -- cannot ask for it. With fp32 operands ptxas finds them unasked; asked, it moves pipeline states to other
  -- registers, and dz takes 6 percent longer.
  local whole_warps = false
  function H.uniform(value) return whole_warps and k.uniform(value) or value end

  local units = k.import "units" (k, H)
  local ring = k.import "ring" (k, H, units)
  local engine = wide and k.import "terms" (k, spec, H, ring, units, options) or k.import "whole" (k, spec, H, ring)
  H.threads = engine.warpgroups * 128
  H.shared_bytes = options.shared_bytes
  assert(H.shared_bytes == H.stages * H.stage_bytes + engine.bytes + staging_bytes + ring.barrier_bytes
    + engine.barrier_bytes + units.bytes, "what tune.lua counts is not what is laid out here")

  local warpgroup, lane, first_row

  -- Rows that no box brings are zeros: tensor cores take less power for them, and rows that are there stay fast.
  local function clear_rows(base)
    local zeros, vectors = {}, H.a_bytes // 16
    for i = 1, 4 do zeros[i] = k.const(k.i32, 0) end
    for stage = 0, H.stages - 1 do
      k.loop(k.tid(), vectors, H.threads, nil, function(i)
        k.shared_store_vector(base + stage * H.stage_bytes + i * 16, zeros)
      end)
    end
    k.proxy_fence()
  end

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
    if spec.parts.short then clear_rows(base) end
    k.when(k.eq(k.tid(), 0), function()
      ring.begin(engine.arrivals)
      engine.begin()
      units.begin(engine.warpgroups * 4 - 3)      -- of its warpgroup, only the producer's takes numbers
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

  function H.rank() return H.cluster > 1 and k.cluster_rank() or k.const(k.i32, 0) end

  -- Where this warp has what tune.lua gives it for its epilogue.
  function H.warp_staging() return H.staging + H.warp * options.staging end

  -- First row of the 16 that this warp has in block w.
  function H.warp_row(w)
    local row = (H.warp & 3) * 16 + w * 64
    return cooperative and row + k.lshr(H.warp, 2) * (H.blocks * 64) or row
  end
  -- Row and column inside the tile of accumulator block w, half h (rows +8), column tile j of 8, element e.
  function H.row(w, h) return first_row + (w * 64 + h * 8) end
  function H.column(j, e) return (lane & 3) * 2 + (j * 8 + e) end
  -- Where that accumulator stands, of a tile with so many columns.
  function H.at(w, h, j, e, columns) return w * (columns or H.columns) // 2 + 4 * j + 2 * h + e + 1 end

  -- What every kernel begins its problem with: the active rows, and at its end the steps along K of a product over D.
  function H.active(p) return H.uniform(k.load(k.i32, p.count, 0)) end
  function H.own_steps(p)
    if spec.hidden > 0 then return k.const(k.i32, (spec.hidden + H.depth - 1) // H.depth) end
    return k.max((p.depth + (H.depth - 1)) // H.depth, 1)
  end

  -- And behind those, with an adapter, the steps of its rank: operands of scores go on in maps of their own.
  local adapted = spec.parts.lora or spec.kind == "dz_lora"
  function H.steps(p)
    return adapted and k.max(H.own_steps(p) + (p.rank + (H.depth - 1)) // H.depth, 1) or H.own_steps(p)
  end
  function H.with_adapter(p, operand, map, at)
    if adapted then operand.more = {map = p[map], at = at, from = H.own_steps(p)} end
    return operand
  end

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
        whole_warps = not wide
        consume()
        whole_warps = false
      end
      if not engine.split then return as_consumer() end
      k.branch(k.eq(warpgroup, 3), function()
        k.registers_lower(engine.splitter_registers)
        as_splitter()
      end, as_consumer)
    end)
  end

  H.rasterise, H.advance = units.rasterise, engine.advance

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

  H.multiply, H.skip = engine.multiply, engine.skip

  -- The accumulators of a tile of raw scores plus the bias of their columns, if there is one. last: no column beyond
  -- it.
  function H.add_bias(acc, bias, tile_column, last)
    if not spec.bias then return acc end
    local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
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

  ------------------------------------------------------------------------------------------------ a kernel
  -- Defines the kernel of an entry from its parts:
  --   problem(p) -> q            what all roles must agree on; q.units is how many units the grid has
  --   unit_at(p, q, unit) -> u   one of them. Both are worked out anew for each unit: no role has registers to keep them
  --   produce(p, u, place, q) -> place         loads a unit's stages, by H.produce, from a place in the ring on
  --   consume(p) -> function(u, place, q, unit) -> place     takes them from there
  --   finish()                   if given, behind the last unit, in the consumer threads
  --   aside(p, warp, warps)      if given, in the two warps of each CTA that have no role: number warp of warps
  --   unit_columns               if given, for the descriptor
  function H.kernel(entry, parts)
    local function body(p)
      local function problem() return parts.problem(p) end
      local function produce(over_units)
        over_units(problem, function(unit, place, q) return parts.produce(p, parts.unit_at(p, q, unit), place, q) end)
      end
      local function consume()
        local run = parts.consume(p)
        first_turn()
        units.over(problem, k.const(k.i32, 0), function(unit, place, q)
          return H.uniform(run(parts.unit_at(p, q, unit), place, q, unit))
        end, false)
        if parts.finish then parts.finish() end
      end
      begin()
      local function aside() parts.aside(p, k.ctaid() * 2 + (k.warp() - 10), k.nctaid() * 2) end
      roles(produce, function() units.dispatch(p.turn, problem().units) end, consume, parts.aside and aside)
    end
    k.kernel {
      entry = entry, threads = H.threads, min_ctas = 1, shared_bytes = H.shared_bytes, body = body,
      tile = {rows = H.rows, columns = H.columns, depth = H.depth, stages = H.stages, raster = options.raster,
              cluster = H.cluster, unit_columns = parts.unit_columns},
    }
  end

  return H
end
