-- mean.lua: values of all scores of a row that losses read, lse and mean_score, and what their derivatives add to the
-- gradients: see runtime/kernel/abi.h for each entry.
--
--   lse        = ln2·(m + log2 s)                     from stats
--   mean_score = (∂t/∂x)·(h·Σ w_v + Σ b_v)/V          the mean is linear: one sum of the weight's rows serves all rows of h
--
-- With c = ∂L/∂lse and n = ∂L/∂mean_score of a row
--
--   dz_v = p_v·(c - g - e·H + β·log p_v)·∂t/∂x + n/V·∂t/∂x       off the target
--
-- c is a part of record's A, and of dz_y. The last term, each[a], is the same for all columns: it is in no dz, which would
-- round it to 16 bits, but
--
--   grad_hidden += each[a]·Σ w_v      grad_weight[v] += Σ each[a]·h_a      grad_bias[v] += Σ each[a]
--
-- Gradients of 16 bits are rounded once, so the kernels of products add it to them (added.lua); to those of fp32, and to the
-- column sums of dz, the kernels below.
--
-- With a softcap nothing is linear; an adapter, a weight in slices and listed columns have other sums. The mean is then
-- from forward's own sums of scores times 2^-40, whose exponentials are all 1, but of -inf: m + q/V. dz of the term is that
-- of a row of scale 0, whose 2^u is 1: forward and dz once more. To dz of listed columns the term is added.
--
--   mean_sums      sums of rows of the weight, or of hidden times each, by slabs
--   mean_fold      the slabs' sums, in order
--   score_rows     lse, mean_score
--   score_record   record of rows.lua with c; each
--   score_target   the target's saved exponential (kept.lua): what times the row's factor is dz_y
--   score_add      dz of a chunk += what the term above is there
--   score_list     dz of listed columns += each[a]
--   score_hidden   grad_hidden += each[a]·Σ w_v
--   score_head     grad_weight and column sums += the sums over rows

local THREADS = 256
local WARPS = THREADS // 32
local LN2 = 0.6931471805599453
local IN_FLIGHT = 6                                 -- rows that a thread of mean_sums loads at a time
local FOLDED = 16                                   -- slabs that one of mean_fold does
-- dz_y over the factor of a row's saved exponentials, from where on they do not serve; and what moves log2 s so far that
-- keep_finish has the row done again.
local MOST_RATIO, OUT_OF_RANGE = 0x1p20, 4096.0
local ROWS = k.abi.MEAN_HEAD_ROWS

return function(k, spec)
  local F = k.import "math64" (k)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  local bytes = spec.dtype == "fp32" and 4 or 2
  local EACH = spec.alignment >= 16 and 16 // bytes or 1 -- elements of a vector
  local nan = 0.0 / 0.0
  local f64 = function(v) return k.convert(k.f64, v) end
  local f32 = function(v) return k.convert(k.f32, v) end
  local i64 = function(v) return k.convert(k.i64, v) end
  local function zero() return k.const(k.f32, 0.0) end

  local function zeros()
    local out = {}
    for d = 1, EACH do out[d] = zero() end
    return out
  end

  local function over_lanes(v)
    for _, mask in ipairs {16, 8, 4, 2, 1} do v = v + k.shuffle_xor(v, mask) end
    return v
  end

  local function load_or(type, ptr, index, default)
    return k.branch(k.is_null(ptr), function() return k.const(k.f32, default) end,
      function() return f32(k.load(type, ptr, index)) end)
  end

  -- EACH elements of a row of f32 or of the operand dtype.
  local function load_each(type, ptr, i)
    local out, width = {}, tostring(type) == "f32" and math.min(EACH, 4) or EACH
    for first = 0, EACH - 1, width do
      local vector = k.load_vector(type, width, ptr, i * (EACH // width) + first // width)
      for d = 1, width do out[first + d] = f32(vector[d]) end
    end
    return out
  end

  local function store_each(type, ptr, i, values)
    local width = tostring(type) == "f32" and math.min(EACH, 4) or EACH
    for first = 0, EACH - 1, width do
      local vector = {}
      for d = 1, width do vector[d] = k.convert(type, values[first + d]) end
      k.store_vector(ptr, i * (EACH // width) + first // width, vector)
    end
  end

  ----------------------------------------------------------------------------------------------- sums over rows
  local function count_of(p)
    return k.branch(k.is_null(p.count), function() return p.rows end,
      function() return k.min(k.load(k.i32, p.count, 0), p.rows) end)
  end

  -- Adds the rows a, a + 1, ... of a thread's columns; one of factor 0 may hold anything.
  local function add_rows(p, a, last, column, sums)
    local rows, out = {}, {}
    for j = 1, IN_FLIGHT do
      local at = k.min(a + (j - 1), last - 1)
      local factor = load_or(k.f32, p.factor, at, 1.0)
      local counts = k.lt(a + (j - 1), last) & k.ne(factor, 0.0)
      local row = k.branch(k.is_null(p.index), function() return at end, function() return k.load(k.i32, p.index, at) end)
      local from = k.offset(p.matrix, (i64(row) * p.stride + i64(column)) * bytes)
      rows[j] = {factor = factor, counts = counts, w = k.load_vector(element, EACH, from, 0, {const = true})}
    end
    for d = 1, EACH do
      out[d] = sums[d]
      for j = 1, IN_FLIGHT do
        local row = rows[j]
        out[d] = out[d] + k.select(row.counts, f32(row.w[d]) * row.factor, 0.0)
      end
    end
    return out
  end

  -- Over the CTA, in a fixed order.
  local function over_cta(v)
    local words = k.shared()
    v = over_lanes(v)
    k.when(k.eq(k.lane(), 0), function() k.shared_store(words + k.warp() * 4, v) end)
    k.barrier()
    local sum = k.shared_load(k.f32, words)
    for warp = 1, WARPS - 1 do sum = sum + k.shared_load(k.f32, words + warp * 4) end
    return sum
  end

  local function mean_sums(p)
    local across = (p.depth + (THREADS * EACH - 1)) // (THREADS * EACH)
    local slab = k.ctaid() // across
    local slice = k.ctaid() - slab * across
    local column = (slice * THREADS + k.tid()) * EACH
    local first = slab * p.slab_rows
    local last = k.min(first + p.slab_rows, count_of(p))
    local part = k.offset(p.part, i64(slab) * (i64(p.depth) + 1) * 4)
    k.when(k.lt(column, p.depth), function()
      local sums = k.loop(first, last, IN_FLIGHT, zeros(), function(a, sums)
        return add_rows(p, a, last, column, sums)
      end)
      for d = 1, EACH do k.store(part, column + (d - 1), sums[d]) end
    end)
    -- one column more: of the bias, or of the factors themselves
    local sum = over_cta(k.loop(first + k.tid(), last, THREADS, zero(), function(a, sum)
      return sum + k.branch(k.is_null(p.factor), function() return load_or(element, p.bias, a, 0.0) end,
        function() return k.load(k.f32, p.factor, a) end)
    end))
    k.when(k.eq(slice, 0) & k.eq(k.tid(), 0), function() k.store(part, p.depth, sum) end)
  end

  -- Each warp sums a run of the parts, FOLDED at a time, of 32 columns; then come the warps' sums, in order.
  local function mean_fold(p)
    local column = k.ctaid() * k.abi.MEAN_FOLD_COLUMNS + k.lane()
    local at = k.min(column, p.width - 1)
    local run = (p.parts + (WARPS - 1)) // WARPS
    local first = k.warp() * run
    local last = k.min(first + run, p.parts)
    local sum = k.loop(first, last, FOLDED, zero(), function(first, sum)
      local values = {}
      for j = 1, FOLDED do
        local part = first + (j - 1)
        local value = k.load(k.f32, p.part, i64(k.min(part, p.parts - 1)) * i64(p.width) + i64(at))
        values[j] = k.select(k.lt(part, last), value, 0.0)
      end
      for j = 1, FOLDED do sum = sum + values[j] end
      return sum
    end)
    local function slot(warp) return k.shared() + (warp * 32 + k.lane()) * 4 end
    k.shared_store(slot(k.warp()), sum)
    k.barrier()
    k.when(k.eq(k.warp(), 0) & k.lt(column, p.width), function()
      for warp = 1, WARPS - 1 do sum = sum + k.shared_load(k.f32, slot(warp)) end
      k.store(p.sums, column, sum)
    end)
  end

  ----------------------------------------------------------------------------------------------- values of rows
  local function mean_score(p, a, row)
    local hidden = k.offset(p.hidden, i64(row) * p.hidden_stride * bytes)
    local sums = k.loop(k.lane(), p.depth // EACH, 32, zeros(), function(i, sums)
      local h, w, out = k.load_vector(element, EACH, hidden, i, {const = true}), load_each(k.f32, p.sums, i), {}
      for d = 1, EACH do out[d] = k.fma(f32(h[d]), w[d], sums[d]) end
      return out
    end)
    local sum = sums[1]
    for d = 2, EACH do sum = sum + sums[d] end
    sum = f64(over_lanes(sum)) + f64(k.load(k.f32, p.sums, p.depth))
    return sum * f64(k.load(k.f32, p.scale, a)) * LN2 / f64(p.vocab_valid)
  end

  -- How many the mean of a row's scores is of, f64.
  local function columns_of(p, a)
    return f64(k.branch(k.is_null(p.list_length), function() return p.vocab_valid end,
      function() return k.load(k.i32, p.list_length, a) end))
  end

  local function score_rows(p)
    local a = p.row_begin + k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local row = k.load(k.i32, p.index, a)
    local stats = k.load_vector(k.f32, 4, p.stats, row)
    local lse = (f64(stats[1]) + f64(stats[2])) * LN2
    local mean = k.branch(k.is_null(p.partial), function()
      return k.branch(k.is_null(p.sums), function() return k.const(k.f64, 0.0) end,
        function() return mean_score(p, a, row) end)
    end, function()
      local sums, columns = k.load_vector(k.f32, 4, p.partial, row), columns_of(p, a)
      local mean = (f64(sums[1]) + f64(sums[3]) / columns) * (LN2 * 0x1p40)
      return k.select(k.lt(f64(sums[2]) * (1 + 0x1p-22), columns), -1.0 / 0.0, mean) -- a score of -inf adds no 1
    end)
    k.when(k.eq(k.lane(), 0), function()
      k.store(p.lse, row, f32(lse))
      k.store(p.mean_score, row, f32(k.select(k.is_nan(lse), nan, mean)))
    end)
  end

  ----------------------------------------------------------------------------------------------- record
  local function score_record(p)
    local a = p.row_begin + k.ctaid() * THREADS + k.tid()
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local row = k.load(k.i32, p.index, a)
    local stats = k.load_vector(k.f32, 4, p.stats, row)
    local log_s, logprob, entropy = f64(stats[2]), f64(stats[3]), f64(stats[4])
    local g, e = f64(load_or(k.f32, p.grad_logprob, row, 0.0)), f64(load_or(k.f32, p.grad_entropy, row, 0.0))
    local c, n = f64(k.load(k.f32, p.grad_lse, row)), f64(k.load(k.f32, p.grad_mean, row))
    local none = k.const(k.f64, 0.0)
    local factor = f64(k.load(k.f32, p.scale, a)) * LN2
    factor = k.branch(k.ne(p.capped, 0), function() return factor * f64(p.cap_in) end, function() return factor end)
    local spread = k.select(k.eq(e, 0.0), none, e * entropy)
    local alpha, beta = c - g - spread, e * -LN2
    local inverse = F.exp(log_s * -LN2) * factor
    local A, B = (alpha - beta * log_s) * inverse, beta * inverse
    local p_y = F.exp(logprob)
    local pull = k.select(k.eq(p_y, 0.0) | k.eq(e, 0.0), none, e * p_y * (logprob + entropy))
    local push = k.select(k.eq(p_y, 0.0), none, c * p_y)
    local dz_y = (push - g * F.expm1(logprob) - pull) * factor
    local silent = k.eq(g, 0.0) & k.eq(e, 0.0) & k.eq(c, 0.0)
    local function guard(v) return k.select(silent, 0.0, f32(v)) end
    local each = f32(k.select(k.eq(n, 0.0), none, n * factor / columns_of(p, a)))
    A, B, dz_y = guard(A), guard(B), guard(dz_y)
    k.store_vector(p.record, a, {stats[1], A, B, dz_y})
    local bound = k.max(k.abs(A) + k.abs(B) * 0.5308, k.abs(dz_y))
    k.store(p.bound, a, k.select(k.is_null(p.each_record), bound, bound + k.abs(each)))
    k.store(p.each, a, each)
    k.when(~k.is_null(p.each_record), function()
      k.store_vector(p.each_record, a, {zero(), each, zero(), each})
      k.store(p.each_scale, a, zero())
    end)
    k.when(~k.is_null(p.kept_stats), function()
      -- at the target saved exponentials hold dz_y over the factor of the others
      local ratio = k.abs(f64(dz_y)) - k.abs(alpha * factor) * MOST_RATIO
      local moved = k.select(k.gt(ratio, 0.0) & ~silent, stats[2] + OUT_OF_RANGE, stats[2])
      k.store_vector(p.kept_stats, row, {stats[1], moved, stats[3], stats[4]})
    end)
  end

  -- Rows that are done again have their dz already, and those without a gradient nothing to exchange.
  local function score_target(p)
    local at = k.ctaid() * THREADS + k.tid()
    local a = p.row_begin + at
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local target, factor = k.load(k.i32, p.local_target, a), k.load(k.f32, p.factor, a)
    local is_redone = k.ne(k.load(k.i32, p.redo, at // k.abi.KEPT_BLOCK_ROWS), 0)
    k.when(~is_redone & k.ge(target, 0) & k.ne(factor, 0.0), function()
      local record = k.load_vector(k.f32, 4, p.record, a)
      k.store(p.kept, i64(at) * p.kept_stride + i64(target), k.convert(element, record[4] / factor))
    end)
  end

  ----------------------------------------------------------------------------------------------- gradients
  -- out[vector i] += factor·sums, for the vectors of this thread.
  local function add_row(out, p, from, step, factor)
    k.loop(from, p.depth // EACH, step, nil, function(i)
      local now, sums = load_each(k.f32, out, i), load_each(k.f32, p.sums, i)
      for d = 1, EACH do now[d] = factor and k.fma(factor, sums[d], now[d]) or now[d] + sums[d] end
      store_each(k.f32, out, i, now)
    end)
  end

  local function score_add(p)
    local at = i64(k.ctaid()) * THREADS + i64(k.tid())
    k.when(k.lt(at, p.elements), function()
      local sum = f32(k.load(element, p.dz, at)) + f32(k.load(element, p.other, at))
      k.store(p.dz, at, k.convert(element, sum))
    end)
    k.when(~k.is_null(p.bias_part) & k.lt(at, p.parts), function()
      k.store(p.bias_part, at, k.load(k.f32, p.bias_part, at) + k.load(k.f32, p.other_part, at))
    end)
  end

  local function score_list(p)
    local a = k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    local row, each = k.load(k.i32, p.index, a), k.load(k.f32, p.each, a)
    local stats = k.load_vector(k.f32, 4, p.stats, row)
    k.exit_if(k.is_nan(stats[1] + stats[2] + stats[3] + stats[4]) | k.eq(each, 0.0))
    local first = k.load(k.i64, p.offsets, row) * 4
    local dz, scores = k.offset(p.list_dz, first), k.offset(p.list_score, first)
    k.loop(k.lane(), k.load(k.i32, p.list_length, a), 32, nil, function(i)
      local y = k.load(k.f32, scores, i)
      local slope = k.select(k.ne(p.capped, 0), (1.0 - y) * (1.0 + y), 1.0)
      k.store(dz, i, k.fma(each, slope, k.load(k.f32, dz, i)))
    end)
  end

  local function score_hidden(p)
    local a = k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    local factor = k.load(k.f32, p.each, a)
    k.exit_if(k.eq(factor, 0.0))
    local row = k.load(k.i32, p.index, a)
    add_row(k.offset(p.out, i64(row) * p.out_stride * 4), p, k.lane(), 32, factor)
  end

  local function score_head(p)
    local first = k.ctaid() * ROWS
    k.when(~k.is_null(p.weight), function()
      k.loop(first + k.warp(), k.min(first + ROWS, p.vocab_valid), WARPS, nil, function(v)
        add_row(k.offset(p.weight, i64(v) * p.weight_stride * 4), p, k.lane(), 32)
      end)
    end)
    local v = first + k.tid()
    k.when(~k.is_null(p.bias) & k.lt(k.tid(), ROWS) & k.lt(v, p.vocab_valid), function()
      k.store(p.bias, v, k.load(k.f32, p.bias, v) + k.load(k.f32, p.sums, p.depth))
    end)
  end

  local function entry(name, shared_bytes, body)
    k.kernel {entry = name, threads = THREADS, shared_bytes = shared_bytes, body = body}
  end
  entry("mean_sums", WARPS * 4, mean_sums)
  entry("mean_fold", WARPS * 32 * 4, mean_fold)
  entry("score_rows", 0, score_rows)
  entry("score_record", 0, score_record)
  entry("score_target", 0, score_target)
  entry("score_add", 0, score_add)
  entry("score_list", 0, score_list)
  entry("score_hidden", 0, score_hidden)
  entry("score_head", 0, score_head)
end
