-- portable.lua: the matrix engine of the portable path (target sm_80): cp.async rings, ldmatrix, mma.sync.
--
--   C (BM, BN) += A (BM, K) · B (BN, K)ᵀ       one CTA of 8 warps, 2 along M x 4 along N, fp32 accumulators
--
-- An operand tile is a ring of shared-memory stages, each 64 bytes of K by BM or BN rows (K-major), or the same bytes as
-- K rows of BM or BN elements (MN-major), in 16-byte chunks XOR-swizzled so that ldmatrix meets no bank conflict.
-- Another architecture replaces this file: forward, dz and product only use the functions returned at its end.
--
-- Precision. bf16 and fp16 accumulate inside the tensor core. fp32 operands are split in registers into three bf16
-- terms each, of which the six products above 2^-25 are kept; every 16 deep step sums into a fresh accumulator that is
-- added to the running one in fp32, because the tensor core truncates where it aligns.
--
-- K order. Steps of 16 in ascending order, one accumulator an element: forward and dz compute bit-equal scores, and a
-- score does not depend on where its row or column stands in a tile.

return function(k, spec)
  local wide = spec.dtype == "fp32"
  local E = {}

  E.element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  E.bytes = wide and 4 or 2                   -- of an element
  E.warps_m, E.warps_n = 2, 4
  E.warp_rows, E.warp_columns = wide and 32 or 64, 64
  E.rows, E.columns = E.warps_m * E.warp_rows, E.warps_n * E.warp_columns
  E.depth = 64 // E.bytes                     -- of one stage: 32, or 16 for fp32
  E.stages = 4                                -- 4 x 24 KiB: fits the 99 KiB of sm_86 and sm_89
  E.threads = 32 * E.warps_m * E.warps_n
  E.mi, E.ni = E.warp_rows // 16, E.warp_columns // 8   -- 16x8 accumulator tiles of a warp

  local chunk = 16 // E.bytes                 -- elements of a 16-byte chunk
  local a_bytes, b_bytes = E.rows * 64, E.columns * 64
  local stage_bytes = a_bytes + b_bytes
  E.shared_bytes = E.stages * stage_bytes

  local log2 = function(n) local b = 0; while (1 << b) < n do b = b + 1 end; return b end

  -- This thread's place: warp row and column, and the row and column pair of an accumulator quad. First in a kernel
  -- body, and again behind the main loop from a reread index, so that none of it lives in registers in between.
  local lane, warp_m, warp_n, quad_row, quad_column
  function E.begin(tid)
    local warp = k.lshr(tid, 5)
    lane, warp_m, warp_n = tid & 31, k.lshr(warp, 2), warp & 3
    quad_row, quad_column = k.lshr(lane, 2), (lane & 3) * 2
    E.tid, E.lane, E.warp_m, E.warp_n = tid, lane, warp_m, warp_n
  end

  -- Row and column inside the CTA tile of accumulator tile (mi, ni), half h (rows +8), element e.
  function E.row(mi, h) return warp_m * E.warp_rows + quad_row + (mi * 16 + h * 8) end
  function E.column(ni, e) return quad_column + (ni * 8 + e) end  -- inside the warp's 64 columns

  ------------------------------------------------------------------------------------------------ copy engines
  -- An operand: {major = "k"|"mn", size = BM or BN, address = f(row, step) -> ptr, valid}: for K-major, `row` is the
  -- tile row and the address is that of its first element of K step `step`; for MN-major `row` is the row of K within
  -- the tile and the address that of the tile's first element in it. limit(step) is the number of valid elements
  -- along the contiguous axis from there (a multiple of 8, or the rest is zero in memory). aligned: 16-byte copies.

  local function swizzle(operand, row)
    if operand.major == "k" then return k.lshr(row, 1) & 3 end      -- 64-byte rows: 2 rows a 128-byte bank line
    if wide then return (row & 3) * 2 end                            -- scalar loads of 8 words from 4 rows
    return row & 7                                                   -- ldmatrix.trans of 8 rows
  end

  -- Which chunks a thread copies: row `first + i*step_rows` for i < count, chunk column `column`.
  local function assignment(operand)
    local per_row = operand.major == "k" and 4 or operand.size // chunk
    local rows = operand.major == "k" and operand.size or E.depth
    local tid = E.tid
    return {
      row_bytes = per_row * 16, column = tid & (per_row - 1), first = k.lshr(tid, log2(per_row)),
      step_rows = E.threads // per_row, count = rows * per_row // E.threads,
    }
  end

  local function copy_async(destination, source, elements)
    k.copy_async16(destination, source, k.max(k.min(elements * E.bytes, 16), 0))
  end

  -- Without 16-byte alignment: one load an element, zero beyond the limit.
  local function copy_elements(destination, source, elements)
    local bits = wide and k.i32 or k.i16
    for word = 0, 3 do
      local parts = {}
      for i = 0, 4 // E.bytes - 1 do
        local at = word * (4 // E.bytes) + i
        parts[#parts + 1] = k.branch(k.gt(elements, at),
          function() return k.load(bits, source, at) end,
          function() return k.const(bits, 0) end)
      end
      local value = wide and parts[1] or (k.zext(k.i32, parts[1]) | (k.zext(k.i32, parts[2]) << 16))
      k.shared_store(destination + word * 4, value)
    end
  end

  local function copy_tile(operand, base, step)
    local place = operand.place
    local function one(row, offset)
      local source, valid = operand.address(row, step)
      local left = operand.limit(step) - place.column * chunk
      local elements = k.select(valid & k.gt(left, 0), left, 0)
      -- A copy of nothing must still name readable memory: the operand's own base.
      source = k.select(k.gt(elements, 0), k.offset(source, place.column * 16), operand.base)
      local copy = operand.aligned and copy_async or copy_elements
      copy(base + place.destination + offset, source, elements)
    end
    if operand.aligned then
      for i = 0, place.count - 1 do
        one(place.first + i * place.step_rows, i * place.step_rows * place.row_bytes)
      end
    else  -- a loop: unrolled element loads would need more registers than there are
      k.loop(0, place.count, 1, nil, function(i)
        one(place.first + i * place.step_rows, i * (place.step_rows * place.row_bytes))
      end)
    end
  end

  local function prepare(operand)
    local place = assignment(operand)
    local row = place.first
    -- step_rows is a multiple of 8, so that every row of this thread has the same swizzle
    place.destination = row * place.row_bytes + ((place.column ~ swizzle(operand, row)) << 4)
    operand.place = place
  end

  ------------------------------------------------------------------------------------------------ fragments
  -- Address of the 8x8 matrix row that this lane hands to ldmatrix, for the warp tile that starts at `origin`.
  -- `second` is the lane bit that selects the second 8 rows of MN, `deep` the one that selects the second half of K.
  local function lane_bit(bit) return k.lshr(lane, bit) & 1 end

  local function fragment_base(operand, origin, second, deep)
    if operand.major == "k" then
      local row = origin + (lane & 7) + lane_bit(second) * 8
      local swizzled = swizzle(operand, row)
      -- Constants are added last, so that they become immediate offsets of ldmatrix and not registers.
      return function(stage, sub, mn) -- sub: 32-byte half of the stage; mn: 16-row tile
        return stage + (row * 64 + (((lane_bit(deep) + sub * 2) ~ swizzled) << 4)) + mn * (16 * 64)
      end
    end
    local depth_row = (lane & 7) + lane_bit(deep) * 8
    local row_bytes = operand.size * E.bytes
    return function(stage, sub, mn)
      local column = k.lshr(origin, 3) + lane_bit(second) + mn * 2
      return stage + (depth_row * row_bytes + ((column ~ (lane & 7)) << 4)) + sub * (16 * row_bytes)
    end
  end

  -- fp32, MN-major: a word at depth t (+4, +8, +12) and row g, read one by one.
  local function word_base(operand, origin)
    local t, g = lane & 3, k.lshr(lane, 2)
    local row_bytes = operand.size * 4
    return function(stage, depth, mn8) -- depth: 0, 4, 8, 12; mn8: 8-row tile
      local column = k.lshr(origin, 2) + mn8 * 2
      local word = t * row_bytes + ((column ~ (t * 2)) << 4) + k.lshr(g, 2) * 16 + (g & 3) * 4
      return stage + word + depth * row_bytes
    end
  end

  -- Splits two fp32 into three bf16x2 words whose sum is exact to 2^-25.
  local function split(x, y)
    local words = {}
    for i = 1, 3 do
      local word = k.pack(k.bf16, x, y)
      words[i] = word
      if i < 3 then
        x = x - k.bitcast(k.f32, word << 16)
        y = y - k.bitcast(k.f32, word & -65536)
      end
    end
    return words
  end

  local f32 = function(word) return k.bitcast(k.f32, word) end

  -- reader(operand) -> read(stage base, sub, index): registers of 16-row tile `index` at half `sub`. For A a list of
  -- 4 words, for B two lists of 2 (the 8-column tiles 2*index and 2*index+1). fp32 has one 16-deep step a stage: its
  -- lists hold {words of term 1, term 2, term 3}. The fp32 order of K inside a step is t, t+4, t+8, t+12: a
  -- permutation, the same for A and B.
  local function reader(operand, origin, is_a)
    local second, deep = is_a and 3 or 4, is_a and 4 or 3
    local load = operand.major == "k" and k.ldmatrix or k.ldmatrix_trans
    if not wide then
      local base = fragment_base(operand, origin, second, deep)
      return function(stage, sub, index)
        local w = load(base(stage, sub, index))
        if is_a then return w end
        return {w[1], w[2]}, {w[3], w[4]}
      end
    end
    local words -- (stage, index) -> per 8-row half: fp32 words at depth t, t+4, t+8, t+12
    if operand.major == "k" then
      local base = fragment_base(operand, origin, second, deep)
      words = function(stage, index)
        local lo, hi = load(base(stage, 0, index)), load(base(stage, 1, index))
        if is_a then return {lo[1], lo[3], hi[1], hi[3]}, {lo[2], lo[4], hi[2], hi[4]} end
        return {lo[1], lo[2], hi[1], hi[2]}, {lo[3], lo[4], hi[3], hi[4]}
      end
    else
      local base = word_base(operand, origin)
      words = function(stage, index)
        local halves = {}
        for half = 0, 1 do
          halves[half + 1] = {}
          for d = 0, 3 do
            halves[half + 1][d + 1] = k.shared_load(k.i32, base(stage, d * 4, index * 2 + half))
          end
        end
        return halves[1], halves[2]
      end
    end
    return function(stage, _, index)
      local first, last = words(stage, index)
      local a, b = split(f32(first[1]), f32(first[2])), split(f32(first[3]), f32(first[4]))
      local c, d = split(f32(last[1]), f32(last[2])), split(f32(last[3]), f32(last[4]))
      local terms, others = {}, {}
      for i = 1, 3 do
        if is_a then terms[i] = {a[i], c[i], b[i], d[i]}
        else terms[i], others[i] = {a[i], b[i]}, {c[i], d[i]} end
      end
      if is_a then return terms end
      return terms, others
    end
  end

  local six = {{3, 1}, {1, 3}, {2, 2}, {2, 1}, {1, 2}, {1, 1}} -- smallest products first

  local function multiply(a, b, c)
    if not wide then return k.mma(spec.dtype, a, b, c) end
    local sum = {0.0, 0.0, 0.0, 0.0}
    for _, pair in ipairs(six) do sum = k.mma("bf16", a[pair[1]], b[pair[2]], sum) end
    local out = {}
    for i = 1, 4 do out[i] = c[i] + sum[i] end
    return out
  end

  ------------------------------------------------------------------------------------------------ main loop
  -- acc[mi][ni] = {row quad_row: e0, e1; row quad_row + 8: e0, e1}
  local function zeros()
    local acc = {}
    for mi = 1, E.mi do
      acc[mi] = {}
      for ni = 1, E.ni do
        acc[mi][ni] = {}
        for i = 1, 4 do acc[mi][ni][i] = k.const(k.f32, 0.0) end
      end
    end
    return acc
  end

  local function multiply_stage(read_a, read_b, stage, acc)
    for sub = 0, wide and 0 or 1 do
      local a, b = {}, {}
      for mi = 1, E.mi do a[mi] = read_a(stage, sub, mi - 1) end
      for pair = 1, E.ni // 2 do
        b[1], b[2] = read_b(stage + a_bytes, sub, pair - 1)
        for mi = 1, E.mi do
          for half = 1, 2 do
            local ni = pair * 2 - 2 + half
            acc[mi][ni] = multiply(a[mi], b[half], acc[mi][ni])
          end
        end
      end
    end
    return acc
  end

  local function next_stage(stage)
    local up = stage + stage_bytes
    return k.select(k.eq(up, E.shared_bytes), 0, up)
  end

  -- Runs `tiles` tiles of `steps` K steps each as one stream of copies, `stages - 1` ahead of the products.
  -- a, b: operands whose address() and limit() take (row, {tile=, step=}). finish(tile, acc, state) -> state is called
  -- after each tile's last product, while the next tile's copies are in flight.
  function E.stream(a, b, tiles, steps, state, finish)
    prepare(a); prepare(b)
    local read_a = reader(a, warp_m * E.warp_rows, true)
    local read_b = reader(b, warp_n * E.warp_columns, false)
    local shared = k.shared()

    local function copy_next(ahead)
      k.when(k.lt(ahead.tile, tiles), function()
        copy_tile(a, shared + ahead.stage, ahead)
        copy_tile(b, shared + ahead.stage + a_bytes, ahead)
      end)
      k.copy_commit()
      local step = ahead.step + 1
      local wrap = k.eq(step, steps)
      return {
        stage = next_stage(ahead.stage), step = k.select(wrap, 0, step),
        tile = k.select(wrap, ahead.tile + 1, ahead.tile),
      }
    end

    local zero = k.const(k.i32, 0)
    local ahead = {stage = zero, step = zero, tile = zero}
    for _ = 1, E.stages - 1 do ahead = copy_next(ahead) end

    local done = k.loop(zero, tiles, 1, {ahead = ahead, stage = zero, user = state}, function(tile, outer)
      local inner = k.loop(zero, steps, 1, {ahead = outer.ahead, stage = outer.stage, acc = zeros()}, function(_, now)
        k.copy_wait(E.stages - 2)
        k.barrier()
        local ahead_now = copy_next(now.ahead)
        local acc = multiply_stage(read_a, read_b, shared + now.stage, now.acc)
        return {ahead = ahead_now, stage = next_stage(now.stage), acc = acc}
      end)
      return {ahead = inner.ahead, stage = inner.stage, user = finish(tile, inner.acc, outer.user)}
    end)
    k.copy_wait(0)
    k.barrier() -- shared memory is free for the caller
    E.begin(k.reread_tid())
    return done.user
  end

  ------------------------------------------------------------------------------------------------ helpers
  -- Walks tiles in bands of `raster` rows of tiles, so that CTAs that run together share both operands in L2.
  function E.raster(id, tiles_m, tiles_n, raster)
    local per_band = tiles_n * raster
    local band = id // per_band
    local inside = id - band * per_band
    local height = k.min(tiles_m - band * raster, raster)
    local n = inside // height
    return band * raster + (inside - n * height), n
  end

  -- acc[mi][ni] is rewritten through fn(value, mi, h, ni, e), all indices from 0.
  function E.map(acc, fn)
    local out = {}
    for mi = 1, E.mi do
      out[mi] = {}
      for ni = 1, E.ni do
        out[mi][ni] = {}
        for h = 0, 1 do
          for e = 0, 1 do
            out[mi][ni][h * 2 + e + 1] = fn(acc[mi][ni][h * 2 + e + 1], mi - 1, h, ni - 1, e)
          end
        end
      end
    end
    return out
  end

  -- Stores a pair of neighbouring elements; paired: the address is aligned for one wide store.
  function E.store_pair(type, ptr, at, x, y, paired)
    if type == k.f32 then
      if paired then k.store_vector(ptr, at >> 1, {x, y})
      else k.store(ptr, at, x); k.store(ptr, at + 1, y) end
    elseif paired then
      k.store(ptr, at >> 1, k.pack(type, x, y))
    else
      k.store(ptr, at, k.convert(type, x)); k.store(ptr, at + 1, k.convert(type, y))
    end
  end

  return E
end
