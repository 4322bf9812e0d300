-- product.lua (sm_90a): the two matrix products of the backward pass, of one chunk of dz, in one launch.
--
--   grad_hidden: out[index[a]][d] = factor[a]·Σ_v dz[a][v]·weight[v][d]  M = active rows, K = columns of the chunk
--   grad_weight: out[v][d]        = Σ_a dz[a][v]·hidden[index[a]][d]     M = columns,     K = active rows of the chunk
--
-- Without factor it is 1. No operand is transposed in memory: dz is read K-major for grad_hidden and MN-major for
-- grad_weight, the other operand MN-major in both, all in boxes of 64 x 64, fp32 of 32 x 32. The epilogue adds to and
-- stores accumulators and the final gradient as the flags ask. Accumulators are fp32; those of a weight's gradient in
-- bf16 have 20 or 24 bits (sums.lua), unless it is an adapter's. With spec.bias a gradient of 16 bits has one more term
-- (added.lua), of which a tile's part waits in shared memory: from L2 it would cost grad_weight 1 %. as: the entry's name
-- where it is an adapter's.
--
-- A unit is a row panel of a result against one tile of D. Those of grad_hidden, long ones, come first; the short
-- ones of grad_weight fill the last wave. Where so few rows are active that at most half of the clusters had a unit of
-- grad_hidden, its tiles are half as wide: the longest unit is what a short batch waits for.

return function(k, spec, as)
  local fp32 = spec.dtype == "fp32"
  local T = k.import "tune".choose(spec)
  local H = k.import "engine" (k, spec, T)
  local sums_of = {[4] = k.import "sums" (k, 4), [8] = k.import "sums" (k, 8)}
  local added = k.import "added" (k, spec)
  local Q = k.import "quads" (k)
  local element = ({bf16 = k.bf16, fp16 = k.f16})[spec.dtype]
  local PANEL = H.rows * H.cluster
  local NARROW = H.columns // 2                    -- columns of a tile of grad_hidden where there are few
  local narrows = not fp32 and not as and NARROW % (H.box * H.cluster) == 0

  local function depth_of(p) return spec.hidden > 0 and k.const(k.i32, spec.hidden) or p.depth end

  local function problem(p)
    local q = {active = H.active(p)}
    q.rows = k.max(k.min(q.active, p.row_end) - p.row_begin, 0)
    q.columns = p.column_end - p.column_begin
    q.across = (depth_of(p) + (H.columns - 1)) // H.columns
    local wanted = k.abi.PRODUCT_WANTED | k.select(k.gt(q.active, 0), k.const(k.i32, k.abi.PRODUCT_IF_ANY), 0)
    local function panels(flags, size)
      return k.select(k.ne(flags & wanted, 0), (size + (PANEL - 1)) // PANEL, 0)
    end
    q.hidden_panels, q.weight_panels = panels(p.hidden_flags, q.rows), panels(p.weight_flags, q.columns)
    q.hidden_across, q.narrow = q.across, k.const(k.i1, false)
    if narrows then
      q.narrow = k.le(q.hidden_panels * q.across * 2, k.udiv(k.reread_nctaid(), H.cluster))
      q.hidden_across = k.select(q.narrow, (depth_of(p) + (NARROW - 1)) // NARROW, q.across)
    end
    q.hidden_units = q.hidden_panels * q.hidden_across
    q.units = q.hidden_units + q.weight_panels * q.across
    return q
  end

  -- of_hidden: which product; m, n: first row and column of the tile of the result; size, depth: M and K.
  local function unit_at(_, q, unit)
    local of_hidden = k.lt(unit, q.hidden_units)
    local inside, panels = unit - q.hidden_units, k.select(of_hidden, q.hidden_panels, q.weight_panels)
    local panel, n = H.rasterise(k.select(of_hidden, unit, inside), panels,
      k.select(of_hidden, q.hidden_across, q.across), T.raster)
    local narrow = of_hidden & q.narrow
    local size, depth = k.select(of_hidden, q.rows, q.columns), k.select(of_hidden, q.columns, q.rows)
    return {
      of_hidden = of_hidden, narrow = narrow, m = panel * PANEL + H.rank() * H.rows,
      n = n * k.select(narrow, k.const(k.i32, NARROW), H.columns), size = size, depth = depth,
      steps = k.max((depth + (H.depth - 1)) // H.depth, 1), -- one even without active rows: the consumers wait
    }
  end

  -- body(columns) for a tile of grad_hidden.
  local function by_width(u, body)
    if not narrows then return body(H.columns) end
    return k.branch(u.narrow, function() return body(NARROW) end, function() return body(H.columns) end)
  end

  local function produce(p, u, start, q)
    return k.branch(u.of_hidden, function()
      return by_width(u, function(columns)
        return H.produce(start, u.steps, {map = p.dz_map, major = "k", at = u.m, box = H.box},
          {map = p.weight_map, major = "mn", at = u.n}, columns)
      end)
    end, function()
      local rows = k.select(k.eq(q.active, p.n), p.hidden_map, p.gathered_map)
      return H.produce(start, u.steps, {map = p.dz_map, major = "mn", at = u.m}, {map = rows, major = "mn", at = u.n})
    end)
  end

  ------------------------------------------------------------------------------------------------ what is added
  -- A tile's part of the vector of added.lua: copied before the main loop, there behind it.
  local adds = spec.bias and not fp32
  local function when_added(p, of, body)
    local flags, which = p[of .. "_flags"], k.abi.PRODUCT_WRITE_OUT | k.abi.PRODUCT_OUT_F32
    if adds then k.when(k.eq(flags & which, k.abi.PRODUCT_WRITE_OUT), body) end
  end

  local function copy_added(p, of, u)
    when_added(p, of, function()
      local i = k.reread_tid() * 4
      H.tile_sync()                                  -- nobody reads the last tile's any more
      k.when(k.lt(i, H.columns), function()
        local exists = k.lt(u.n + i, depth_of(p))
        k.copy_async16(H.staging + i * 4, k.offset(added.vector(p, of), k.convert(k.i64, u.n + i) * 4),
          k.select(exists, k.const(k.i32, 16), 0))
      end)
      k.copy_commit()
    end)
  end

  local function await_added(p, of)
    when_added(p, of, function()
      k.copy_wait(0)
      H.tile_sync()
    end)
  end

  local function load_added(u)
    return function(n) return k.shared_load_vector(k.f32, 2, H.staging + (n - u.tile_n) * 4) end
  end

  ------------------------------------------------------------------------------------------------ the epilogue
  local function wide(value) return k.convert(k.i64, value) end

  -- Rows of a tile. Quads exchange words, so all lanes do the same: those without a row read the last one again, and
  -- store nothing.
  local function row_of(u, w, h)
    local m = u.m + H.row(w, h)
    return {exists = k.lt(m, u.size), m = k.min(m, u.size - 1)}
  end

  -- What a row of a tile has at column n of the result, if that is inside.
  local function when_inside(p, u, n, body)
    if spec.hidden > 0 and spec.hidden % u.columns == 0 then body() else k.when(k.lt(n, depth_of(p)), body) end
  end

  -- Words of a row of 16 bits at `at`, pairs of neighbours as the accumulator has them, from column `first` of the tile
  -- on; and how many columns they are.
  local function line(p, u, out, at, first)
    local function group(i) return u.n + first + i * Q.columns + (H.lane & 3) * 8 end
    local function place(n) return (at + wide(n)) >> 3 end
    local R = {}
    function R.load(count)
      local words = {}
      for i = 0, count // 4 - 1 do
        local n = k.min(group(i), depth_of(p) - 8)
        for j, word in ipairs(Q.exchange(k.load_vector(k.i32, 4, out, place(n)), H.lane)) do words[4 * i + j] = word end
      end
      return words
    end
    function R.store(words, exists)
      for i = 0, #words // 4 - 1 do
        local n, vector = group(i), Q.exchange({table.unpack(words, 4 * i + 1, 4 * i + 4)}, H.lane)
        k.when(exists, function()
          when_inside(p, u, n, function() k.store_vector(out, place(n), vector) end)
        end)
      end
    end
    return R
  end

  -- Adds the accumulators of a tile to those in memory and stores them, row by row. of: "hidden" or "weight"
  local function finish_f32(p, acc, u, of)
    local to, for_hidden = {}, of == "hidden"
    for _, name in ipairs {"acc", "acc_stride", "out", "out_stride", "flags"} do to[name] = p[of .. "_" .. name] end
    local begin = for_hidden and p.row_begin or p.column_begin
    local depth = depth_of(p)
    local scale = spec.dtype == "fp16" and k.load(k.f32, p.scale_pair, 1) or nil
    local function flag(which) return k.ne(to.flags & which, 0) end

    local function finish_row(w, h)
      local at = row_of(u, w, h)
      local row = at.m + begin
      local acc_at, sums = wide(row) * to.acc_stride, {}
      local factor = for_hidden and k.branch(k.is_null(p.factor), function() return k.const(k.f32, 1.0) end,
        function() return k.load(k.f32, p.factor, row) end)
      for j = 0, u.width // 8 - 1 do
        for e = 0, 1 do
          local sum = acc[H.at(w, h, j, e, u.width)]
          if scale then sum = sum * scale end
          if factor then sum = sum * factor end
          -- without active rows dz holds anything
          sums[2 * j + e + 1] = for_hidden and sum or k.select(k.gt(u.depth, 0), sum, 0.0)
        end
      end
      sums = k.branch(flag(k.abi.PRODUCT_READ_ACC), function()
        local more = {}
        for j = 0, u.width // 8 - 1 do
          local i, n = 2 * j + 1, k.min(u.n + H.column(j, 0), depth - 2)
          local before = k.load_vector(k.f32, 2, to.acc, (acc_at + wide(n)) >> 1)
          more[i], more[i + 1] = sums[i] + before[1], sums[i + 1] + before[2]
        end
        return more
      end, function() return sums end)
      local function store_f32(ptr, row_at)
        k.when(at.exists, function()
          for j = 0, u.width // 8 - 1 do
            local n = u.n + H.column(j, 0)
            when_inside(p, u, n, function()
              k.store_vector(ptr, (row_at + wide(n)) >> 1, {sums[2 * j + 1], sums[2 * j + 2]})
            end)
          end
        end)
      end
      k.when(flag(k.abi.PRODUCT_WRITE_ACC), function() store_f32(to.acc, acc_at) end)
      k.when(flag(k.abi.PRODUCT_WRITE_OUT), function()
        local out_at = wide(for_hidden and k.load(k.i32, p.index, row, {const = true}) or row) * to.out_stride
        if fp32 then return store_f32(to.out, out_at) end
        k.branch(flag(k.abi.PRODUCT_OUT_F32), function() store_f32(to.out, out_at) end, function()
          local add, words = added.nothing(), {}
          if adds then
            add = for_hidden and added.of_hidden(p, row, load_added(u)) or added.of_weight(p, load_added(u))
          end
          for j = 0, u.width // 8 - 1 do
            words[j + 1] = k.pack(element, add(sums[2 * j + 1], sums[2 * j + 2], u.n + H.column(j, 0)))
          end
          line(p, u, to.out, out_at, 0).store(words, at.exists)
        end)
      end)
    end

    for w = 0, H.blocks - 1 do
      for h = 0, 1 do finish_row(w, h) end
    end
  end

  -- The same for a weight's gradient in bf16: accumulators of 20 or 24 bits, a batch of sums at a time.
  local function finish_split(p, acc, u, S)
    local flags, per_row = p.weight_flags, H.width // 4
    local across = (depth_of(p) + (H.columns - 1)) // H.columns * (H.columns // H.width)
    local low = S.place(p.weight_acc, {sums = H.accumulators, threads = H.warps * 32},
      u.m // H.rows * across + u.n // H.width, H.warp * 32 + H.lane)
    local function flag(which) return k.ne(flags & which, 0) end

    -- Sums first to first + size - 1 of row h of block w. Loads of a batch are in flight together.
    local function finish_batch(w, h, first, size)
      local at = row_of(u, w, h)
      local upper = line(p, u, p.weight_out, wide(at.m + p.column_begin) * p.weight_out_stride, (first - 1) * 4)
      local function vector(i) return ((2 * w + h) * per_row + first - 1 + i) // S.group end
      local sums = {}
      for i = 1, size do -- without active rows dz holds anything
        local j, e = (first + i - 2) // 2, (i - 1) % 2
        sums[i] = k.select(k.gt(u.depth, 0), acc[H.at(w, h, j, e)], 0.0)
      end
      sums = k.branch(flag(k.abi.PRODUCT_READ_ACC), function()
        local more, words, high = {}, nil, upper.load(size // 2)
        for i = 1, size, 2 do
          if (i - 1) % S.group == 0 then words = low.load(vector(i - 1)) end
          local before = S.join(high[(i + 1) // 2], words, (i - 1) % S.group)
          more[i], more[i + 1] = sums[i] + before[1], sums[i + 1] + before[2]
        end
        return more
      end, function() return sums end)
      local words = k.branch(flag(k.abi.PRODUCT_WRITE_ACC), function()
        local bits, words = {}, {}
        for i = 1, size do bits[i] = S.round(sums[i]) end
        for i = 0, size - 1, S.group do low.store(vector(i), bits, i) end
        for i = 1, size, 2 do words[(i + 1) // 2] = S.high(bits[i], bits[i + 1]) end
        return words
      end, function()
        local add, words = adds and added.of_weight(p, load_added(u)) or added.nothing(), {}
        for i = 1, size, 2 do
          local n = u.n + H.column((first + i) // 2 - 1, 0)
          words[(i + 1) // 2] = k.pack(k.bf16, add(sums[i], sums[i + 1], n))
        end
        return words
      end)
      upper.store(words, at.exists)
    end

    for w = 0, H.blocks - 1 do
      for h = 0, 1 do
        -- while the first row is not finished, large tiles leave no registers for the loads of a whole one
        local size = per_row
        if w == 0 and h == 0 and H.accumulators >= 128 then size = H.accumulators > 128 and S.group or per_row // 2 end
        for first = 1, per_row, size do finish_batch(w, h, first, size) end
      end
    end
  end

  local function finish(p, acc, u, of)
    H.reread()
    if of == "hidden" or spec.dtype ~= "bf16" or as then return finish_f32(p, acc, u, of) end
    k.branch(k.ne(p.weight_flags & k.abi.PRODUCT_OUT_F32, 0), function() finish_f32(p, acc, u, of) end, function()
      k.branch(k.eq(p.weight_acc_stride, 4), function() finish_split(p, acc, u, sums_of[4]) end,
        function() finish_split(p, acc, u, sums_of[8]) end)
    end)
  end

  local function consume(p)
    return function(u, index, _, unit)
      local function product(of, a_major, columns)
        copy_added(p, of, u)
        H.each_part(index, u.steps, a_major, "mn", nil, function(acc, first)
          await_added(p, of)
          local tile = unit_at(p, problem(p), unit)
          tile.columns, tile.width = columns, math.min(columns, H.width)
          tile.n, tile.tile_n = tile.n + first, tile.n
          k.when(k.lt(tile.m, tile.size), function() finish(p, acc, tile, of) end)
        end, columns)
      end
      k.branch(u.of_hidden, function() by_width(u, function(columns) product("hidden", "k", columns) end) end,
        function() product("weight", "mn", H.columns) end)
      return H.advance(index, 1, u.steps)
    end
  end

  H.kernel(as or "products_map", {problem = problem, unit_at = unit_at, produce = produce, consume = consume})
end
