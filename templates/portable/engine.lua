-- engine.lua (portable): the matrix engine of the portable path (target sm_80): cp.async rings, ldmatrix, mma.sync.
--
--   C (BM, BN) += A (BM, K) · B (BN, K)ᵀ       one CTA, each warp a part of the tile, fp32 accumulators
--
-- tune.lua says how large tile, parts and ring are.
--
-- An operand tile is a ring of shared-memory stages, each 64 bytes of K by BM or BN rows (K-major), or the same bytes
-- as K rows of BM or BN elements (MN-major), in 16-byte chunks XOR-swizzled so that ldmatrix meets no bank conflict.
--
-- Precision. bf16 and fp16 accumulate inside the tensor core. fp32 operands are split in registers into three bf16
-- terms each, of which the six products above 2^-25 are kept; every 16 deep step sums into a fresh accumulator that is
-- added to the running one in fp32, because the tensor core truncates where it aligns.
--
-- K order. Steps of 16 in ascending order, one accumulator an element: forward and dz compute bit-equal scores, and a
-- score does not depend on where its row or column stands in a tile.

return function(k, spec)
  local T = k.import "tune".choose(spec)
  local wide = spec.dtype == "fp32"
  local six = k.import "split" (k)
  local E = {}

  E.element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  E.bytes = wide and 4 or 2                   -- of an element
  E.rows, E.columns, E.warp_rows, E.warp_columns = T.rows, T.columns, T.warp_rows, T.warp_columns
  E.warps_m, E.warps_n = E.rows // E.warp_rows, E.columns // E.warp_columns
  E.depth = 64 // E.bytes                     -- of one stage: 32, or 16 for fp32
  E.threads = 32 * T.warps
  E.mi, E.ni = E.warp_rows // 16, E.warp_columns // 8   -- 16x8 accumulator tiles of a warp

  local chunk = 16 // E.bytes                 -- elements of a 16-byte chunk
  local a_bytes, b_bytes = E.rows * 64, E.columns * 64
  local stage_bytes = a_bytes + b_bytes
  local ring_bytes = T.stages * stage_bytes
  E.shared_bytes = T.shared_bytes             -- with what epilogues of warps have behind the ring
  E.warp_staging_bytes = T.staging
  E.tile = {rows = E.rows, columns = E.columns, depth = E.depth, stages = T.stages, raster = T.raster}

  local log2 = function(n) local b = 0; while (1 << b) < n do b = b + 1 end; return b end

  -- This thread's place: warp row and column, and the row and column pair of an accumulator quad. First in a kernel
  -- body, and again behind the main loop from a reread index, so that none of it lives in registers in between.
  local lane, warp_m, warp_n, quad_row, quad_column
  function E.begin(tid)
    local warp = k.lshr(tid, 5)
    lane, warp_m = tid & 31, k.lshr(warp, log2(E.warps_n))
    warp_n = (warp + warp_m * 2) & (E.warps_n - 1) -- those of one n on two partitions of the multiprocessor
    quad_row, quad_column = k.lshr(lane, 2), (lane & 3) * 2
    E.tid, E.lane, E.warp_m, E.warp_n = tid, lane, warp_m, warp_n
  end

  function E.warp_staging() return k.shared() + ring_bytes + k.lshr(E.tid, 5) * E.warp_staging_bytes end

  -- Row and column inside the CTA tile of accumulator tile (mi, ni), half h (rows +8), element e.
  function E.row(mi, h) return warp_m * E.warp_rows + quad_row + (mi * 16 + h * 8) end
  function E.column(ni, e) return quad_column + (ni * 8 + e) end  -- inside the warp's columns

  ------------------------------------------------------------------------------------------------ copy engines
  -- An operand of the stream. Its rows have keys, with their place in memory and whether they are real: a
  -- column of the vocabulary, an active row, a row of K.
  --
  --   major     "k": a tile row is a row of memory, K runs along it; "mn": a row of K is a row of memory
  --   size      BM or BN
  --   aligned   whether bases and strides are multiples of 16 bytes
  --   key(row)  of tile row `row` ("mn": of row `row` of K) at tile 0, step 0; keys of neighbouring rows differ by 1,
  --             but apart(rows) is that of a thread's first row and the one so many rows behind it
  --   base, row_bytes       memory, if rows are evenly spaced: a row starts at base + key*row_bytes
  --   source_at(row, at)    "mn", if rows are looked up: the key of row `row` of K at {tile, step}, read a step ahead
  --                         by one lane for all
  --   address(key)          else: where a row starts; or address_at(key, at), if steps along K look their rows up
  --   step_bytes, tile_bytes   from one K step, and from one tile, to the next
  --   valid(key, at)        whether that row is real at {tile, step}; others are filled with zeros
  --   limit(at)             elements along the contiguous axis that are real, from the tile's first (a multiple of the
  --                         chunk, or memory behind them holds zeros up to one)
  --
  -- The pointers that rows need are carried through the loops: an address is one addition, as the integer units would
  -- otherwise be busier than the tensor cores.

  local function swizzle(operand, row)
    if operand.major == "k" then return k.lshr(row, 1) & 3 end      -- 64-byte rows: 2 rows a 128-byte bank line
    if wide then return (row & 3) * 2 end                            -- scalar loads of 8 words from 4 rows
    return row & 7                                                   -- ldmatrix.trans of 8 rows
  end

  -- What one thread copies: rows `first + i*step_rows` for i < count, in chunk column `column`. step_rows is a multiple
  -- of 8, so that all of them have the same swizzle.
  local function assign(operand)
    local per_row = operand.major == "k" and 4 or operand.size // chunk
    local rows = operand.major == "k" and operand.size or E.depth
    local step_rows = E.threads // per_row
    local first, column = k.lshr(E.tid, log2(per_row)), E.tid & (per_row - 1)
    local row_bytes = per_row * 16
    local mine = {column = column * chunk, count = rows * per_row // E.threads, copy_bytes = step_rows * row_bytes,
                  destination = first * row_bytes + ((column ~ swizzle(operand, first)) << 4)}
    local key = operand.key(first)
    local function apart(i) return operand.apart and operand.apart(i * step_rows) or i * step_rows end
    function mine.key(i) return key + apart(i) end
    mine.bytes = {} -- from row i - 1 to row i
    for i = 1, operand.row_bytes and mine.count - 1 or 0 do
      local keys = apart(i) - apart(i - 1)
      local alike = i > 1 and keys == apart(i - 1) - apart(i - 2)
      mine.bytes[i] = alike and mine.bytes[i - 1] or operand.row_bytes * keys
    end
    operand.mine = mine
  end

  local function looked_up(operand, at) return operand.source_at(lane & (E.depth - 1), at) end

  -- What to carry: a pointer if rows are evenly spaced, one a row if not, this lane's row where steps look theirs up.
  local function pointers(operand)
    local mine, list = operand.mine, {}
    local function at_column(pointer) return k.offset(pointer, mine.column * E.bytes) end
    if operand.source_at then
      list[1] = looked_up(operand, {step = k.const(k.i32, 0), tile = k.const(k.i32, 0)})
    elseif operand.row_bytes then
      list[1] = at_column(k.offset(operand.base, k.convert(k.i64, mine.key(0)) * operand.row_bytes))
    elseif operand.address then
      for i = 0, mine.count - 1 do list[i + 1] = at_column(operand.address(mine.key(i))) end
    end
    return list
  end

  local function advance(operand, list, next, wrap)
    if operand.source_at then return {looked_up(operand, next)} end
    local out = {}
    for i, pointer in ipairs(list) do
      out[i] = k.offset(pointer, wrap and k.select(wrap, operand.mine.back, operand.step_bytes) or operand.step_bytes)
    end
    return out
  end

  -- Where row i of what this thread copies is; before: row i - 1.
  local function source_of(operand, list, i, at, before)
    local mine = operand.mine
    if operand.source_at then
      local row = k.convert(k.i64, k.shuffle_idx(list[1], mine.key(i)))
      return k.offset(operand.base, row * operand.row_bytes + k.convert(k.i64, mine.column * E.bytes))
    end
    if operand.address_at then return k.offset(operand.address_at(mine.key(i), at), mine.column * E.bytes) end
    if operand.address then return list[i + 1] end
    return i == 0 and list[1] or k.offset(before, mine.bytes[i])
  end

  -- Without 16-byte alignment: one load an element, 0 where the chunk is not real.
  local function copy_elements(destination, source, real)
    local bits = wide and k.i32 or k.i16
    for word = 0, 3 do
      local parts = {}
      for i = 0, 4 // E.bytes - 1 do
        parts[#parts + 1] = k.branch(real,
          function() return k.load(bits, source, word * (4 // E.bytes) + i) end,
          function() return k.const(bits, 0) end)
      end
      local value = wide and parts[1] or (k.zext(k.i32, parts[1]) | (k.zext(k.i32, parts[2]) << 16))
      k.shared_store(destination + word * 4, value)
    end
  end

  -- A chunk that is not real, as none is unless `any`, reads nothing (cp.async of 0 bytes), so its pointer may point
  -- anywhere.
  local function copy_tile(operand, list, base, at, any)
    local mine = operand.mine
    local inside = k.gt(operand.limit(at), mine.column) & any
    local source
    for i = 0, mine.count - 1 do
      local real = inside & operand.valid(mine.key(i), at)
      local destination = base + mine.destination + i * mine.copy_bytes
      source = source_of(operand, list, i, at, source)
      if operand.aligned then
        k.copy_async16(destination, source, k.select(real, k.const(k.i32, 16), 0))
      else
        copy_elements(destination, source, real)
      end
    end
  end

  ------------------------------------------------------------------------------------------------ fragments
  -- Address of the 8x8 matrix row that this lane hands to ldmatrix, for the warp tile that starts at `origin`.
  -- `second` is the lane bit that selects the second 8 rows of MN, `deep` the one that selects the second half of K.
  local function lane_bit(bit) return k.lshr(lane, bit) & 1 end

  local function fragment_base(operand, origin, second, deep)
    -- Constants are added last, so that they become immediate offsets of ldmatrix and not registers.
    if operand.major == "k" then
      local row = origin + (lane & 7) + lane_bit(second) * 8
      local base = row * 64 + ((lane_bit(deep) ~ swizzle(operand, row)) << 4)
      return function(stage, sub, mn) -- sub: 32-byte half of the stage, the chunk's bit 1; mn: 16-row tile
        return stage + (base ~ (sub * 32)) + mn * (16 * 64)
      end
    end
    local depth_row = (lane & 7) + lane_bit(deep) * 8
    local row_bytes = operand.size * E.bytes
    local base = depth_row * row_bytes
    local column, swizzled = k.lshr(origin, 3) + lane_bit(second), lane & 7
    return function(stage, sub, mn) -- origin is a multiple of 32 rows: mn changes chunk bits 1 and up
      return stage + (base + (((column + mn * 2) ~ swizzled) << 4)) + sub * (16 * row_bytes)
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
      local a, b = six.split(f32(first[1]), f32(first[2])), six.split(f32(first[3]), f32(first[4]))
      local c, d = six.split(f32(last[1]), f32(last[2])), six.split(f32(last[3]), f32(last[4]))
      local terms, others = {}, {}
      for i = 1, 3 do
        if is_a then terms[i] = {a[i], c[i], b[i], d[i]}
        else terms[i], others[i] = {a[i], b[i]}, {c[i], d[i]} end
      end
      if is_a then return terms end
      return terms, others
    end
  end

  local function multiply(a, b, c)
    return wide and six.multiply(a, b, c) or k.mma(spec.dtype, a, b, c)
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

  -- The products of half `sub` of a stage, whose fragments of B are read as they are needed.
  local function multiply_half(read_a, read_b, stage, sub, acc)
    local a, b = {}, {}
    for mi = 1, E.mi do a[mi] = read_a(stage, sub, mi - 1) end
    for pair = 0, E.ni // 2 - 1 do
      b[1], b[2] = read_b(stage + a_bytes, sub, pair)
      for mi = 1, E.mi do
        for half = 1, 2 do
          local ni = pair * 2 + half
          acc[mi][ni] = multiply(a[mi], b[half], acc[mi][ni])
        end
      end
    end
    return acc
  end

  -- The fragments of half `sub` of a stage: those of A by 16 rows, those of B by 8 columns.
  local function fragments(read_a, read_b, stage, sub)
    local held = {a = {}, b = {}}
    for mi = 1, E.mi do held.a[mi] = read_a(stage, sub, mi - 1) end
    for pair = 0, E.ni // 2 - 1 do
      held.b[2 * pair + 1], held.b[2 * pair + 2] = read_b(stage + a_bytes, sub, pair)
    end
    return held
  end

  -- To and fro along N: neighbours share a fragment, mostly the larger one of A, which is then read once.
  local function multiply_all(held, acc)
    for mi = 1, E.mi do
      for at = 1, E.ni do
        local ni = mi % 2 == 1 and at or E.ni + 1 - at
        acc[mi][ni] = multiply(held.a[mi], held.b[ni], acc[mi][ni])
      end
    end
    return acc
  end

  local function next_stage(stage)
    local up = stage + stage_bytes
    return k.select(k.eq(up, ring_bytes), 0, up)
  end

  -- copy_next(ahead) -> ahead: starts to copy the stage at {stage, step, tile, a, b}; and where the first one is.
  -- branches: behind the last tile copies are branched around; else they read nothing, and stand among the products.
  local function copies(a, b, tiles, steps, branches)
    assign(a); assign(b)
    if tiles ~= 1 then -- from the last step of a tile to the first of the next
      local last = type(steps) == "number" and k.const(k.i64, steps - 1) or k.convert(k.i64, steps - 1)
      for _, operand in ipairs {a, b} do operand.mine.back = operand.tile_bytes - operand.step_bytes * last end
    end
    local shared = k.shared()

    local function copy_next(ahead)
      local more = k.lt(ahead.tile, tiles)
      local function copy(any)
        copy_tile(a, ahead.a, shared + ahead.stage, ahead, any)
        copy_tile(b, ahead.b, shared + ahead.stage + a_bytes, ahead, any)
      end
      if branches then k.when(more, function() copy(k.const(k.i1, true)) end) else copy(more) end
      k.copy_commit()
      local step = ahead.step + 1
      local wrap = k.eq(step, steps)
      local can_wrap = tiles ~= 1 and wrap
      local next = {step = k.select(wrap, 0, step), tile = k.select(wrap, ahead.tile + 1, ahead.tile)}
      return {
        stage = next_stage(ahead.stage), step = next.step, tile = next.tile,
        a = advance(a, ahead.a, next, can_wrap), b = advance(b, ahead.b, next, can_wrap),
      }
    end

    local zero = k.const(k.i32, 0)
    return copy_next, {stage = zero, step = zero, tile = zero, a = pointers(a), b = pointers(b)}
  end

  local function await_stage()
    k.copy_wait(T.stages - 2)
    k.barrier()
  end

  -- What a tile's steps make of {ahead, stage}: multiply_tile adds its products as acc; pass_tile zeros, where a warp
  -- only copies for others. holds: whether fragments of the next products wait in registers
  local function tile_steps(holds, copy_next, read_a, read_b, steps)
    local zero = k.const(k.i32, 0)

    local function pass_by(now)
      await_stage()
      return {ahead = copy_next(now.ahead), stage = next_stage(now.stage)}
    end

    local function read(stage, sub) return fragments(read_a, read_b, k.shared() + stage, sub) end

    -- A step waits for its stage, reads both halves of it, multiplies the last half of the stage before and its own
    -- first one.
    local function enter_ahead(now)
      await_stage()
      local first, acc = read(now.stage, 0), now.acc
      if now.last then acc = multiply_all(now.last, acc) end
      local last, ahead_now = read(now.stage, 1), copy_next(now.ahead)
      return {ahead = ahead_now, stage = next_stage(now.stage), last = last, acc = multiply_all(first, acc)}
    end

    local function enter_plain(now)
      local next, acc = pass_by(now), now.acc
      for sub = 0, wide and 0 or 1 do acc = multiply_half(read_a, read_b, k.shared() + now.stage, sub, acc) end
      return {ahead = next.ahead, stage = next.stage, acc = acc}
    end

    local enter = holds and enter_ahead or enter_plain
    local function multiply_tile(now)
      local begun = {ahead = now.ahead, stage = now.stage, acc = zeros()}
      if holds then begun = enter(begun) end -- the step without one before
      local inner = k.loop(holds and zero + 1 or zero, steps, 1, begun, function(_, each) return enter(each) end)
      local acc = holds and multiply_all(inner.last, inner.acc) or inner.acc
      return {ahead = inner.ahead, stage = inner.stage, acc = acc}
    end

    local function pass_tile(now)
      local inner = k.loop(zero, steps, 1, now, function(_, each) return pass_by(each) end)
      return {ahead = inner.ahead, stage = inner.stage, acc = zeros()}
    end

    return multiply_tile, pass_tile
  end

  -- Runs `tiles` tiles (a value, or the number 1) of `steps` K steps each as one stream of copies, `stages - 1` ahead
  -- of the products. finish(tile, acc, state) -> state is called after each tile's last product, while the next tile's
  -- copies are in flight. is_idle(tile), if given: whether this warp's columns are all zeros there, so that the tensor
  -- cores are left to the others; from a vote, by which ptxas knows it for one answer of a warp.
  function E.stream(a, b, tiles, steps, state, finish, is_idle)
    -- Not where fp32 has terms in registers, nor where copies have addresses there: where both operands look their rows
    -- up at each step, or elements are copied one by one.
    local holds = not wide and a.aligned and b.aligned and not (a.address_at and b.address_at)
    local copy_next, ahead = copies(a, b, tiles, steps, not holds)
    for _ = 1, T.stages - 1 do ahead = copy_next(ahead) end
    local read_a = reader(a, warp_m * E.warp_rows, true)
    local read_b = reader(b, warp_n * E.warp_columns, false)
    local multiply_tile, pass_tile = tile_steps(holds, copy_next, read_a, read_b, steps)

    local zero = k.const(k.i32, 0)
    local done = k.loop(zero, tiles, 1, {ahead = ahead, stage = zero, user = state}, function(tile, outer)
      local now = {ahead = outer.ahead, stage = outer.stage}
      local made = is_idle and k.branch(is_idle(tile), function() return pass_tile(now) end,
        function() return multiply_tile(now) end) or multiply_tile(now)
      return {ahead = made.ahead, stage = made.stage, user = finish(tile, made.acc, outer.user)}
    end)
    k.copy_wait(0)
    k.barrier() -- shared memory is free for the caller
    E.begin(k.reread_tid())
    return done.user
  end

  ------------------------------------------------------------------------------------------------ helpers
  -- Rasterises tiles in panels of rows of tiles, so that CTAs that run together share both operands in L2.
  function E.raster(id, tiles_m, tiles_n)
    local raster = T.raster
    local per_panel = tiles_n * raster
    local panel = id // per_panel
    local inside = id - panel * per_panel
    -- 0 behind the last tile, where online.lua finds CTAs their place otherwise.
    local height = k.max(k.min(tiles_m - panel * raster, raster), 1)
    local n = inside // height
    return panel * raster + (inside - n * height), n
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
