-- terms.lua: fp32 operands multiplied as six products of bf16 terms (split.lua).
--
-- What stands in the ring is fp32. A is split in registers, by the consumer threads. B has to stand in shared
-- memory as bf16: a warpgroup of its own reads each stage and writes three planes of it, one a term, in the layout that
-- wgmma wants, into a second ring.
--
-- Precision. Tensor cores truncate where they align. The six products of each 16 along K go, smallest first, into fresh
-- accumulators, and those are added to the running ones in fp32, in ascending order of K.
--
-- Rows. The four lanes of each row take the rows of a block of 8 in the order 0, 2, 4, 6, 1, 3, 5, 7: so that the 16
-- lanes which read or write 8 bytes at a time meet all banks.

return function(k, spec, H, ring, units, options)
  local terms = k.import "split" (k)
  local PLANES = options.planes                   -- stages of the second ring
  local TERM_BYTES = H.columns * 64               -- 32 along K in bf16
  local PLANES_BYTES = 3 * TERM_BYTES
  local E = {
    warpgroups = 4, bytes = PLANES * PLANES_BYTES, barrier_bytes = PLANES * 16,
    producer_registers = 32, splitter_registers = 64, consumer_registers = 208,
    arrivals = 8 + 4 * H.cluster, -- at the end of a stage: the warps that read A, and those that split B in each CTA
  }
  local planes, full, empty

  function E.place(start, barriers) planes, full, empty = start, barriers, barriers + PLANES * 8 end
  function E.begin()
    for i = 0, PLANES - 1 do
      k.mbarrier_init(full + i * 8, 4)            -- the warps that split
      k.mbarrier_init(empty + i * 8, 2)           -- the consumer warpgroups
    end
  end

  ------------------------------------------------------------------------------------------------ splitting B
  -- Both layouts of a plane: where warp and lane find 8 elements of a block of 32 columns, and where they put each
  -- term.
  --   K-major    rows of 32 along K, 64 bytes, swizzled by 64 bytes: a lane has a row, a warp 8 along K
  --   MN-major   rows of 64 along N, 128 bytes, boxes of 32 rows: a lane has a row of K, a warp 8 of each 32 columns
  local function place_in_planes(major, warp, lane)
    if major == "k" then
      local at = lane * 64 + ((warp ~ (k.lshr(lane, 1) & 3)) << 4)
      return function(start, block) return start + at + block * (32 * 64) end
    end
    local at = lane * 128 + ((warp ~ (lane & 7)) << 4)
    return function(start, block)
      return start + ((block & 1 == 1) and (at ~ 64) or at) + (block >> 1) * (32 * 128)
    end
  end

  local function split_stage(from, to, warp, lane, put)
    local near = from + lane * 128 + (((warp * 2) ~ (lane & 7)) << 4)
    for block = 0, H.columns // 32 - 1 do
      local x = k.shared_load_vector(k.f32, 4, near + block * 4096)
      for i, y in ipairs(k.shared_load_vector(k.f32, 4, (near ~ 16) + block * 4096)) do x[4 + i] = y end
      local words = {{}, {}, {}}
      for pair = 1, 4 do
        for term, word in ipairs(terms.split(x[2 * pair - 1], x[2 * pair])) do words[term][pair] = word end
      end
      for term = 1, 3 do k.shared_store_vector(put(to, block) + (term - 1) * TERM_BYTES, words[term]) end
    end
  end

  -- The splitter's part of ring.produce: the same stages, split instead of loaded.
  function E.split(at, steps, _, b)
    local tid = k.reread_tid()
    local warp, lane = k.lshr(tid, 5) & 3, tid & 31
    local put = place_in_planes(b.major, warp, lane)
    local function release(stage)                 -- lanes 0 to cluster-1 signal, each one CTA
      if H.cluster == 1 then return k.mbarrier_arrive(ring.empty + stage * 8, k.eq(lane, 0)) end
      local there = k.cluster_address(ring.empty + stage * 8, k.min(lane, H.cluster - 1))
      k.mbarrier_arrive_there(there, k.lt(lane, H.cluster))
    end
    return k.loop(k.const(k.i32, 0), steps, 1, at, function(_, now)
      k.mbarrier_wait(ring.full + now.raw.stage * 8, now.raw.parity)
      k.mbarrier_wait(empty + now.planes.stage * 8, now.planes.parity)
      split_stage(ring.base + H.a_bytes + now.raw.stage * H.stage_bytes, planes + now.planes.stage * PLANES_BYTES, warp,
        lane, put)
      k.proxy_fence()
      k.warp_sync()
      release(now.raw.stage)
      k.mbarrier_arrive(full + now.planes.stage * 8, k.eq(lane, 0))
      return {raw = ring.next_place(now.raw, H.stages), planes = ring.next_place(now.planes, PLANES)}
    end)
  end

  function E.split_units(problem, body)
    local function first(parity) return {stage = k.const(k.i32, 0), parity = k.const(k.i32, parity)} end
    units.over(problem, {raw = first(0), planes = first(1)}, body, "warp")
  end

  ------------------------------------------------------------------------------------------------ multiplying
  function E.row_of_lane(lane) return (k.lshr(lane, 2) & 3) * 2 + k.lshr(lane, 4) end

  -- read(stage) -> for each k16 the words of A's fragment before splitting: pairs of neighbours along K, of rows
  -- g and g+8, then of the same rows 8 further along K.
  local function fragments(major)
    local tid = k.reread_tid()
    local lane = tid & 31
    local t, g = lane & 3, E.row_of_lane(lane)
    local first = (k.lshr(tid, 5) & 7) * 16       -- row of the warp; two consumer warpgroups
    if major == "k" then
      local at = (first + g) * 128 + ((k.lshr(t, 1) ~ g) << 4) + (t & 1) * 8
      return function(stage)
        local out, from = {}, stage + at
        for step = 0, 1 do
          out[step + 1] = {}
          for half = 0, 1 do
            local address = from ~ ((4 * step + 2 * half) << 4)
            for h = 0, 1 do
              out[step + 1][2 * half + h + 1] = k.shared_load_vector(k.f32, 2, address + h * (8 * 128))
            end
          end
        end
        return out
      end
    end
    local chunk = k.lshr(first & 16, 2) + k.lshr(g, 2)
    local at = k.lshr(first, 5) * 4096 + t * 256 + ((chunk ~ (t * 2)) << 4) + (g & 3) * 4
    return function(stage)
      local out, from = {}, stage + at
      for step = 0, 1 do
        out[step + 1] = {}
        for half = 0, 1 do
          for h = 0, 1 do
            local pair = {}
            for e = 0, 1 do
              pair[e + 1] = k.shared_load(k.f32, (from ~ (h * 32 + e * 16)) + (e * 128 + step * 2048 + half * 1024))
            end
            out[step + 1][2 * half + h + 1] = pair
          end
        end
      end
      return out
    end
  end

  local function split_fragment(pairs)
    local a = {{}, {}, {}}
    for i, pair in ipairs(pairs) do
      for term, word in ipairs(terms.split(pair[1], pair[2])) do a[term][i] = word end
    end
    return a
  end

  -- Descriptors of a plane. K-major: groups of 8 rows of 64 bytes; MN-major: of 8 rows of 128 bytes, and the next 64
  -- columns follow as a box.
  local LAYOUT = {
    k = {high = 2 << 62 | (512 >> 4) << 32, lead = 1, step = 32 // 16},
    mn = {high = 1 << 62 | (1024 >> 4) << 32, lead = 4096 // 16, step = 16 * 128 // 16},
  }

  -- A pipeline state of both rings moves by whole tiles, too: a number below a common multiple of twice their lengths.
  local PERIOD = 2 * H.stages * PLANES
  local function place(index, n)
    return {stage = k.urem(index, n), parity = k.udiv(index, n) & 1}
  end
  function E.advance(index, steps) return k.urem(index + steps, PERIOD) end

  local function add(acc, fresh)
    local out = {}
    for i, x in ipairs(fresh) do out[i] = acc[i] + x end
    return out
  end

  -- One tile from the position `index` of the stream on, of operands with these majors.
  function E.multiply(index, steps, a_major, b_major)
    local acc = {}
    for i = 1, H.accumulators do acc[i] = k.const(k.f32, 0.0) end
    local layout, read = LAYOUT[b_major], fragments(a_major)
    local tid = k.reread_tid()
    local of_warp, of_group = k.eq(tid & 31, 0), k.eq(tid & 127, 0)
    local low = H.uniform(k.lshr(planes, 4) & 0x3fff) | layout.lead << 16
    local start = {raw = place(index, H.stages), planes = place(index, PLANES), acc = acc}
    return k.loop(k.const(k.i32, 0), steps, 1, start, function(_, now)
      local sum, at = now.acc, now.planes.stage
      k.mbarrier_wait(ring.full + now.raw.stage * 8, now.raw.parity)
      local pairs = read(ring.base + now.raw.stage * H.stage_bytes)
      local a = split_fragment(pairs[1])
      k.mbarrier_wait(full + at * 8, now.planes.parity)
      local plane = low + at * (PLANES_BYTES // 16)
      for step = 1, 2 do
        local fresh = k.wgmma_terms {
          columns = H.columns, a = a, b_major = b_major, pairs = terms.products,
          b = k.zext(k.i64, plane + (step - 1) * layout.step) | layout.high,
          b_at = {0, TERM_BYTES // 16, 2 * TERM_BYTES // 16},
        }
        if step == 1 then                         -- while products fly
          a = split_fragment(pairs[2])
          k.warp_sync()
          k.mbarrier_arrive(ring.empty + now.raw.stage * 8, of_warp)
        end
        sum = add(sum, k.wgmma_wait(0, fresh))
      end
      k.mbarrier_arrive(empty + at * 8, of_group)
      return {raw = ring.next_place(now.raw, H.stages), planes = ring.next_place(now.planes, PLANES), acc = sum}
    end).acc
  end

  return E
end
