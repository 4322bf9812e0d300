-- rows.lua: the small kernels around the matrix work, one number a row or column: see runtime/kernel/abi.h for each entry.
--
--   prepare      classify rows, compact the active ones, fill the outputs of the others
--   gather       copy the hidden rows that are active side by side
--   combine      fold the partials of one shard -> logprob, entropy, stats, or the shard's partial
--   merge        fold the partials of all shards, in rank order
--   record       {m, A, B, dz_y} of each active row, from stats and the upstream gradients
--   dz_scale     fp16: the power of two that dz is stored with
--   bias_reduce  sum the bias gradients of the row tiles, in order
--   fill         grad_hidden of inactive rows

local WARPS = 32            -- of the one CTA of prepare and dz_scale
local THREADS = WARPS * 32
local LN2 = 0.6931471805599453
local ACTIVE, LEFT_OUT, BAD = k.abi.ROW_ACTIVE, k.abi.ROW_LEFT_OUT, k.abi.ROW_BAD
local LISTED = 4 -- a row class on its way through prepare: to be looked at
local GATHERED = k.abi.GATHER_ROWS

return function(k, spec)
  local S = k.import "score" (k)
  local F = k.import "math64" (k)
  local O = k.import "outputs" (k)
  local scan = k.import "scan" (k).over_cta
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  local target_type = spec.target_dtype == "int64" and k.i64 or k.i32
  local nan, infinity = 0.0 / 0.0, 1.0 / 0.0
  local f64 = function(v) return k.convert(k.f64, v) end
  local f32 = function(v) return k.convert(k.f32, v) end

  local function store_if(ptr, index, value)
    k.when(~k.is_null(ptr), function() k.store(ptr, index, value) end)
  end

  local function load_or(ptr, index, default)
    return k.branch(k.is_null(ptr), function() return k.const(k.f32, default) end,
      function() return k.load(k.f32, ptr, index) end)
  end

  ---------------------------------------------------------------------------------------------------- prepare
  local function mark_listed(p)
    k.loop(k.convert(k.i64, k.tid()), p.n, THREADS, nil, function(i)
      k.store(p.row_class, i, k.const(k.i8, LEFT_OUT))
    end)
    k.barrier()
    k.loop(k.convert(k.i64, k.tid()), p.row_count, THREADS, nil, function(i)
      local row = k.convert(k.i64, k.load(k.i32, p.rows, i))
      local inside = k.ge(row, 0) & k.lt(row, p.n)
      k.when(inside, function() k.store(p.row_class, row, k.const(k.i8, LISTED)) end)
      k.when(~inside, function() k.atomic_add(p.error_word, 0, k.const(k.i32, 1)) end)
    end)
    k.barrier()
  end

  -- Rows of a thread at a time: 4, whose loads overlap, or 1 where there are no more than threads.
  local EACH

  local function each(f)
    local out = {}
    for j = 1, EACH do out[j] = f(j) end
    return out
  end

  -- ptr[at[j]], or the default where there is no array.
  local function load_each(type, ptr, at, default)
    return k.branch(k.is_null(ptr),
      function() return each(function() return k.const(type, default) end) end,
      function() return each(function(j) return k.load(type, ptr, at[j]) end) end)
  end

  -- row_scale of each row, and whether its temperature is one: see abi.h.
  local function scales_of(p, at)
    return k.branch(k.is_null(p.temperature),
      function()
        local yes = k.const(k.i1, true)
        return {scale = each(function() return p.row_scale end), good = each(function() return yes end)}
      end, function()
        local out = {scale = {}, good = {}}
        -- Normal numbers alone, as libflp wants them of a scalar; a unit of 0 gives 0. Ordered comparisons: NaN fails.
        local function is_normal(x) return k.ge(x, 0x1p-126) & k.lt(x, infinity) end
        for j = 1, EACH do
          local temperature = k.load(k.f32, p.temperature, at[j])
          out.scale[j] = p.unit / temperature
          out.good[j] = is_normal(temperature) & (is_normal(k.abs(out.scale[j])) | k.eq(p.unit, 0.0))
        end
        return out
      end)
  end

  local function classify(p, at, target, good)
    local marks = k.branch(k.is_null(p.rows),
      function() return each(function() return k.const(k.i8, LISTED) end) end,
      function() return each(function(j) return k.load(k.i8, p.row_class, at[j]) end) end)
    local logprob, entropy = load_each(k.f32, p.grad_logprob, at, 0.0), load_each(k.f32, p.grad_entropy, at, 0.0)
    local unasked = k.is_null(p.grad_logprob) & k.is_null(p.grad_entropy)
    return each(function(j)
      local upstream = unasked | k.ne(logprob[j], 0.0) | k.ne(entropy[j], 0.0)
      local work = k.eq(marks[j], LISTED) & upstream & k.ne(target[j], p.ignore_index)
      local known = k.ge(target[j], 0) & k.lt(target[j], p.vocab_total)
      return k.select(work, k.select(known & good[j], k.const(k.i32, ACTIVE), BAD), k.const(k.i32, LEFT_OUT))
    end)
  end

  local function fill_outputs(p, i, class)
    local value = k.select(k.eq(class, BAD), k.const(k.f32, nan), 0.0)
    local lowest = k.select(k.eq(class, BAD), k.const(k.f32, nan), S.lowest)
    store_if(p.logprob, i, value)
    store_if(p.entropy, i, value)
    local zero = k.const(k.f32, 0.0)
    k.when(~k.is_null(p.stats), function() k.store_vector(p.stats, i, {value, value, value, value}) end)
    k.when(~k.is_null(p.partial), function()
      k.store_vector(p.partial, i, {lowest, zero, zero, k.const(k.f32, -infinity)})
    end)
  end

  -- A thread's rows where not all are active. classes: a byte each
  local function finish_others(p, row, classes)
    k.loop(k.const(k.i32, 0), k.convert(k.i32, k.min(p.n - row, EACH)), 1, nil, function(j)
      local i, class = row + k.convert(k.i64, j), k.lshr(classes, j * 8) & 255
      k.store(p.row_class, i, k.convert(k.i8, class))
      k.when(k.ne(class, ACTIVE), function() fill_outputs(p, i, class) end)
      k.when(k.eq(class, BAD), function() k.atomic_add(p.error_word, 0, k.const(k.i32, 1)) end)
    end)
  end

  -- How many rows are active.
  local function sort_rows(p, rows_each)
    EACH = rows_each
    local zero = k.const(k.i64, 0)
    return k.loop(zero, p.n, THREADS * EACH, k.const(k.i32, 0), function(base, count)
      local first = base + k.convert(k.i64, k.tid() * EACH)
      local row = each(function(j) return first + (j - 1) end)
      local inside = each(function(j) return k.lt(row[j], p.n) end)
      local at = each(function(j) return k.select(inside[j], row[j], zero) end)
      local target = each(function(j) return k.convert(k.i64, k.load(target_type, p.target, at[j])) end)
      local scales = scales_of(p, at)
      local class = classify(p, at, target, scales.good)
      local active = each(function(j) return inside[j] & k.eq(class[j], ACTIVE) end)
      local number, classes = k.const(k.i32, 0), k.const(k.i32, 0)
      for j = 1, EACH do
        number = number + k.zext(k.i32, active[j])
        classes = classes | class[j] << 8 * (j - 1)
      end
      local before, found = scan(number, k.shared(), WARPS)
      local a = count + before
      for j = 1, EACH do
        k.when(active[j], function()
          k.store(p.index, a, k.convert(k.i32, row[j]))
          local here = target[j] - p.vocab_offset
          local mine = k.ge(here, 0) & k.lt(here, p.vocab_valid)
          k.store(p.local_target, a, k.select(mine, k.convert(k.i32, here), -1))
          k.store(p.scale, a, scales.scale[j])
        end)
        a = a + k.zext(k.i32, active[j])
      end
      local all = k.eq(number, EACH)
      local word = EACH == 4 and k.i32 or k.i8 -- EACH bytes in one word
      k.when(all, function() k.store(p.row_class, k.udiv(first, EACH), k.convert(word, classes)) end)
      k.when(~all, function() finish_others(p, first, classes) end)
      return count + found
    end)
  end

  local function prepare(p)
    k.when(~k.is_null(p.rows), function() mark_listed(p) end)
    local count = k.branch(k.le(p.n, THREADS), function() return sort_rows(p, 1) end,
      function() return sort_rows(p, 4) end)
    k.when(k.eq(k.tid(), 0), function() k.store(p.count, 0, count) end)
  end

  ------------------------------------------------------------------------------------------------------ gather
  local function gather(p)
    k.when(k.eq(k.ctaid(), 0) & k.eq(k.tid(), 0), function() k.store(p.turn, 0, k.const(k.i32, 0)) end)
    local count = k.load(k.i32, p.count, 0)
    local active = k.max(k.min(count, p.row_end) - p.row_begin, 0)
    local a = k.ctaid() * 8 + k.warp()                -- of the chunk
    local padded = k.min((active + (GATHERED - 1)) & -GATHERED, p.row_end - p.row_begin) -- products read whole boxes of rows
    k.exit_if(k.eq(count, p.n) | k.ge(a, padded))
    local bytes = spec.dtype == "fp32" and 4 or 2
    local real = k.lt(a, active)
    local row = k.convert(k.i64, k.load(k.i32, p.index, p.row_begin + k.select(real, a, 0)))
    local from = k.offset(p.hidden, row * p.hidden_stride * bytes)
    local to = k.offset(p.out, k.convert(k.i64, a) * p.out_stride * bytes)
    local words = p.depth * bytes // 16
    k.loop(k.lane(), words, 32, nil, function(i)
      local vector = k.load_vector(k.i32, 4, from, i, {const = true})
      for j = 1, 4 do vector[j] = k.select(real, vector[j], 0) end
      k.store_vector(to, i, vector)
    end)
    local one = bytes == 4 and k.i32 or k.i16
    k.loop(words * (16 // bytes) + k.lane(), p.depth, 32, nil, function(i)
      k.store(to, i, k.select(real, k.load(one, from, i, {const = true}), k.const(one, 0)))
    end)
  end

  ------------------------------------------------------------------------------------------- combine and merge
  -- One thread an active row; returns its index and the row.
  local function active_row(p)
    local a = k.ctaid() * 256 + k.tid()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    return a, k.load(k.i32, p.index, a)
  end

  -- Never above 0 (below 0 for H), and NaN if the largest score is beyond the limit, -inf included, which the error word
  -- counts.
  local function finish_row(p, a, row, sum, target_score)
    local u = O.exponent(p, function() return k.load(k.f32, p.scale, a) end, target_score, sum.m)
    local log_s = F.log2(f64(sum.s))
    local logprob, entropy = O.logprob(u, log_s), O.entropy(sum, log_s)
    logprob, entropy = O.at_most_0(logprob), O.at_least_0(entropy)
    local alive = S.is_alive(sum)
    local function guard(v) return k.select(alive, f32(v), nan) end
    k.when(S.is_beyond(sum), function() k.atomic_add(p.error_word, 0, k.const(k.i32, 1)) end)
    logprob, entropy = guard(logprob), guard(entropy)
    store_if(p.logprob, row, logprob)
    store_if(p.entropy, row, entropy)
    k.when(~k.is_null(p.stats), function()
      k.store_vector(p.stats, row, {sum.m, guard(log_s), logprob, entropy})
    end)
  end

  local function finish_combine(p, a, row, sum)
    local target_score = k.branch(k.ge(k.load(k.i32, p.local_target, a), 0),
      function() return k.load(k.f32, p.zy, a) end, function() return k.const(k.f32, -infinity) end)
    k.branch(k.is_null(p.partial),
      function() finish_row(p, a, row, sum, target_score) end,
      function() k.store_vector(p.partial, row, {sum.m, sum.s, sum.q, target_score}) end)
  end

  -- A lane has a row and one of four partials, a quad: a group, or a group each. All warps lay groups side by side, as
  -- many as there is room for; warp 0 then takes them in order.
  local COMBINE_ROWS, FOLD = 8, k.abi.GROUP_LEAVES
  local COMBINE_WARPS, COMBINE_GROUPS = k.abi.COMBINE_LANES * COMBINE_ROWS // 32, 256
  local COMBINE_SHARED = COMBINE_GROUPS * 3 * COMBINE_ROWS * 4
  local AT_ONCE, IN_ORDER = 4, 8 -- quads of a warp under way at once; groups that follow each other without a branch
  assert(FOLD * COMBINE_ROWS == 32)

  local function of_words(f) return {m = f("m", 0), s = f("s", 1), q = f("q", 2)} end
  local function own_row() return k.lane() & COMBINE_ROWS - 1 end
  local function slot(group, word) return k.shared() + ((group * 3 + word) * COMBINE_ROWS + own_row()) * 4 end

  local function of_group(group)
    return of_words(function(_, word) return k.shared_load(k.f32, slot(group, word)) end)
  end

  local function merge_if(condition, sum, other)
    local merged = S.merge(sum, other)
    return of_words(function(name) return k.select(condition, merged[name], sum[name]) end)
  end

  -- Lays the groups of quads [first, last) from slot 0 on: those of a row of the chunk. own: the lane's partial of a
  -- quad; is_alone: a group is a partial
  local function lay_groups(p, row, own, first, last, is_alone)
    local function part_sum(part)
      local base = k.convert(k.i64, part) * 3 * p.capacity + row
      return of_words(function(_, word) return k.load(k.f32, p.part, base + p.capacity * word) end)
    end
    k.loop(first, last, COMBINE_WARPS * AT_ONCE, nil, function(base)
      local laid = {}
      for u = 1, AT_ONCE do -- every load is under way before the first merge
        local quad = base + (u - 1) * COMBINE_WARPS + k.warp()
        local part = quad * FOLD + own
        local exists = k.lt(quad, last) & k.lt(part, p.parts)
        laid[u] = {quad = quad, part = part, exists = exists, sum = part_sum(k.select(exists, part, 0))}
      end
      for _, one in ipairs(laid) do
        local sum = one.sum
        for leaf = 1, FOLD - 1 do -- of the quad's first lane that leaf
          local other = of_words(function(name) return k.shuffle_xor(one.sum[name], leaf * COMBINE_ROWS) end)
          sum = merge_if(k.lt(one.part + leaf, p.parts), sum, other)
        end
        local group = k.select(is_alone, one.part - first * FOLD, one.quad - first)
        k.when(one.exists & (is_alone | k.eq(own, 0)), function()
          of_words(function(name, word)
            k.shared_store(slot(group, word), k.select(is_alone, one.sum[name], sum[name]))
          end)
        end)
      end
    end)
  end

  local function combine(p)
    local count = k.min(k.load(k.i32, p.count, 0), p.row_end)
    local first_row = p.row_begin + k.ctaid() * COMBINE_ROWS
    k.exit_if(k.ge(first_row, count))
    local here, own = own_row(), k.udiv(k.lane(), COMBINE_ROWS)
    local a = k.min(first_row + here, count - 1) -- lanes without a row repeat the last
    local row = k.convert(k.i64, a - p.row_begin)
    local is_alone, quads = k.eq(p.fold, 1), (p.parts + (FOLD - 1)) // FOLD
    local groups = k.select(is_alone, p.parts, quads)
    local room = k.select(is_alone, k.const(k.i32, COMBINE_GROUPS // FOLD), COMBINE_GROUPS) -- quads at a time
    local sum = k.loop(k.const(k.i32, 0), quads, room, S.empty(true), function(first, before)
      lay_groups(p, row, own, first, k.min(first + room, quads), is_alone)
      k.barrier()
      local many = k.min(groups - k.select(is_alone, first * FOLD, first), COMBINE_GROUPS)
      local out = k.branch(k.eq(k.warp(), 0), function()
        local is_first = k.eq(first, 0)
        local start, total = k.select(is_first, k.const(k.i32, 1), 0), of_group(0) -- the first is taken as it is
        total = of_words(function(name) return k.select(is_first, total[name], before[name]) end)
        local whole = start + (many - start) // IN_ORDER * IN_ORDER
        local function add(group, total) return S.merge(total, of_group(group)) end
        total = k.loop(start, whole, IN_ORDER, total, function(group, total)
          for i = 0, IN_ORDER - 1 do total = add(group + i, total) end
          return total
        end)
        return k.loop(whole, many, 1, total, add)
      end, function() return before end)
      k.barrier()
      return out
    end)
    k.when(k.eq(k.warp(), 0) & k.lt(k.lane(), COMBINE_ROWS) & k.lt(first_row + here, count), function()
      finish_combine(p, a, k.load(k.i32, p.index, a), sum)
    end)
  end

  local function merge(p)
    local a, row = active_row(p)
    local function shard_sum(shard)
      local v = k.load_vector(k.f32, 4, p.partial, shard * p.n + k.convert(k.i64, row))
      return {m = v[1], s = v[2], q = v[3], y = v[4]}
    end
    local zero = k.const(k.i64, 0)
    local total = k.loop(zero + 1, p.shard_count, 1, shard_sum(zero), function(shard, total)
      local other = shard_sum(shard)
      local sum = S.merge(total, other)
      sum.y = k.max(total.y, other.y)
      return sum
    end)
    finish_row(p, a, row, total, total.y)
  end

  ---------------------------------------------------------------------------------------- record and dz_scale
  local function record(p)
    local a = p.row_begin + k.ctaid() * 256 + k.tid()
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local row = k.load(k.i32, p.index, a)
    local stats = k.load_vector(k.f32, 4, p.stats, row)
    local log_s, logprob, entropy = f64(stats[2]), f64(stats[3]), f64(stats[4])
    local g, e = f64(load_or(p.grad_logprob, row, 0.0)), f64(load_or(p.grad_entropy, row, 0.0))
    -- ∂t/∂x in nats: a/T, with softcap (a/T)·(1 - tanh²), whose second factor dz applies
    local factor = f64(k.load(k.f32, p.scale, a)) * LN2
    factor = k.branch(k.ne(p.capped, 0), function() return factor * f64(p.cap_in) end, function() return factor end)
    -- e·H, and no H was asked for if e is absent
    local spread = k.select(k.eq(e, 0.0), k.const(k.f64, 0.0), e * entropy)
    local alpha, beta = -g - spread, e * -LN2
    local inverse = F.exp(log_s * -LN2) * factor
    local A, B = (alpha - beta * log_s) * inverse, beta * inverse
    local p_y = F.exp(logprob)
    local pull = k.select(k.eq(p_y, 0.0) | k.eq(e, 0.0), k.const(k.f64, 0.0), e * p_y * (logprob + entropy))
    local dz_y = (-(g * F.expm1(logprob)) - pull) * factor
    local silent = k.eq(g, 0.0) & k.eq(e, 0.0)        -- no gradient, even where stats are NaN
    local function guard(v) return k.select(silent, 0.0, f32(v)) end
    A, B, dz_y = guard(A), guard(B), guard(dz_y)
    k.store_vector(p.record, a, {stats[1], A, B, dz_y})
    -- max over u <= 0 of 2^u·|u| is 1/(e·ln2) = 0.5307
    local bound = k.max(k.abs(A) + k.abs(B) * 0.5308, k.abs(dz_y))
    k.store(p.bound, a, bound)
  end

  -- The largest shift whose scale and inverse are normal numbers, and the bound of a row as far as it has one: a gradient
  -- that is not finite is so at any scale. Of other dtypes the entry is there, but never runs.
  local MOST_SHIFT, bound_of = 100, function(bound) return bound end
  if spec.dtype == "fp16" then
    MOST_SHIFT, bound_of = 126, function(bound) return k.select(k.lt(bound, math.huge), bound, 0.0) end
  end

  local function dz_scale(p)
    local count = k.load(k.i32, p.count, 0)
    local top = k.loop(k.tid(), count, THREADS, k.const(k.f32, 0.0), function(a, top)
      return k.max(top, bound_of(k.load(k.f32, p.bound, a)))
    end)
    local shared = k.shared()
    local function warp_max(v)
      for _, mask in ipairs {16, 8, 4, 2, 1} do v = k.max(v, k.shuffle_xor(v, mask)) end
      return v
    end
    top = warp_max(top)
    k.when(k.eq(k.lane(), 0), function() k.shared_store(shared + k.warp() * 4, top) end)
    k.barrier()
    top = warp_max(k.shared_load(k.f32, shared + k.lane() * 4))
    k.when(k.eq(k.tid(), 0), function()
      -- top < 2^(e+1), so 2^(13-e) brings it below 2^14
      local e = (k.lshr(k.bitcast(k.i32, top), 23) & 255) - 127
      local shift = k.max(k.min(13 - e, MOST_SHIFT), -MOST_SHIFT)
      local none = k.eq(top, 0.0)
      local function power(n) return k.bitcast(k.f32, (n + 127) << 23) end
      k.store(p.scale_pair, 0, k.select(none, 1.0, power(shift)))
      k.store(p.scale_pair, 1, k.select(none, 1.0, power(-shift)))
    end)
  end

  ---------------------------------------------------------------------------------------- bias_reduce and fill
  local function bias_reduce(p)
    local column = k.ctaid() * 256 + k.tid()
    local columns = p.column_end - p.column_begin
    k.exit_if(k.ge(column, columns))
    local rows = k.max(k.min(k.load(k.i32, p.count, 0), p.row_end) - p.row_begin, 0)
    local tiles = (rows + (p.tile_rows - 1)) // p.tile_rows
    local sum = k.loop(k.const(k.i32, 0), tiles, 1, k.const(k.f32, 0.0), function(tile, sum)
      local at = k.convert(k.i64, tile) * k.convert(k.i64, columns) + k.convert(k.i64, column)
      return sum + k.load(k.f32, p.bias_part, at)
    end)
    local v = p.column_begin + column
    local result = k.branch(k.ne(p.read_acc, 0), function() return sum + k.load(k.f32, p.acc, v) end,
      function() return sum end)
    k.when(k.ne(p.write_acc, 0), function() k.store(p.acc, v, result) end)
    k.when(k.ne(p.write_out, 0), function() k.store(p.out, v, k.convert(element, result)) end)
  end

  local function fill(p)
    local row = k.convert(k.i64, k.ctaid()) * 8 + k.convert(k.i64, k.warp())
    k.exit_if(k.ge(row, p.n))
    local class = k.convert(k.i32, k.load(k.i8, p.row_class, row))
    k.exit_if(k.eq(class, ACTIVE))
    local value = k.select(k.eq(class, BAD), k.const(k.f32, nan), 0.0)
    k.loop(k.lane(), p.depth, 32, nil, function(d)
      local at = row * p.out_stride + k.convert(k.i64, d)
      k.branch(k.ne(p.out_is_f32, 0),
        function() k.store(p.out, at, value) end,
        function() k.store(p.out, at, k.convert(element, value)) end)
    end)
  end

  local function entry(name, threads, shared_bytes, body)
    k.kernel {entry = name, threads = threads, shared_bytes = shared_bytes, body = body}
  end
  entry("prepare", THREADS, WARPS * 4, prepare)
  entry("gather", 256, 0, gather)
  entry("combine", COMBINE_WARPS * 32, COMBINE_SHARED, combine)
  entry("merge", 256, 0, merge)
  entry("record", 256, 0, record)
  entry("dz_scale", THREADS, WARPS * 4, dz_scale)
  entry("bias_reduce", 256, 0, bias_reduce)
  entry("fill", 256, 0, fill)
end
