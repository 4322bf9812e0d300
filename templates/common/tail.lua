-- tail.lua: which rows are served by their lists, and the gradients of what they list: see runtime/kernel/abi.h for
-- each entry.
--
--   tail_target    zy = h·w_y + b, a bound of the row's LSE before its first tile (own_scores.lua)
--   tail_mean      the mean of some rows of the weight
--   tail_rows      of each row: what its list lacks, from above; Σ|dz|, from below; how many columns it keeps
--   tail_choose    rows that lack too much, or have no room, become dense; where the others' entries start
--   tail_entries   columns and dz of what the others keep
--
-- dz = 2^u·(A + B·u), u = t - m (record of rows.lua), so that over the columns which a list does not keep
--
--   Σ|dz| <= |A|·Σ 2^u + |B|·Σ 2^u·|u|
--
-- and both sums are forward's sums of the shard less those of what is kept. Forward's are rounded: what a tail weighs
-- beside a column that has nearly all the mass stands in their last bits. The allowances below are what roundings can
-- make of them.
--
-- What is left out of a row has one sign, and rows of a weight have much in common, which dh has none of, as dz sums to 0:
-- so dh gets Σ dz of what is left out times the mean of some rows of the weight (tail_mean, list_hidden).

local THREADS = 256
local WARPS = THREADS // 32
local CHOOSE_THREADS, CHOOSE_EACH = 1024, 4         -- tail_choose: rows of a thread at a time
local CHOOSE_WARPS = CHOOSE_THREADS // 32
local MEAN_WARPS, MEAN_TOGETHER = 16, 8              -- tail_mean
local LOG2E = 1.4426950408889634

-- Forward's sums, relative to themselves. Each addition may lose half an ulp, 2^-24, and where columns are alike all
-- lose the same way: a thread adds 192 columns of a leaf, then come its quad and the groups, 86 of 262144 columns; what
-- exp2 rounds is the rest.
local SUMMED = 320 * 0x1p-24
-- What they lose as a rule: of a sum that is left out no more than that is known.
local LOST = 0x1p-21
-- u of a listed column, absolute: t - floor, floor - m and their sum are below 64 in magnitude where it matters, and
-- each is rounded to half of 2^-18.
local LISTED = 0x1p-17
-- A list serves with a floor so far below the LSE, in log2 units: nearer it has nothing, further its scores lack
-- digits.
local FLOOR_NEAR, FLOOR_FAR = 1.0, 64.0
-- tanh of a softcap is t/scale: it would lack digits below this scale, and its slope beyond this part of the cap.
local SCALE_LEAST, NEAR_CAP = 1.0, 1.0 - 0x1p-10
-- Of what a row keeps; the roundings of tail_choose's sums are in it.
local FROM_BELOW = 1.0 - 0x1p-12

return function(k, spec)
  local S, W = k.import "score" (k), k.import "weight" (k, spec, spec.wide_weight)
  local scan = k.import "scan" (k).over_cta
  local EACH = spec.alignment < 16 and 1 or spec.dtype == "fp32" and 4 or 8 -- elements of a load of tail_mean
  local ELSEWHERE = k.abi.LIST_ELSEWHERE
  local infinity = 1.0 / 0.0
  local i32 = function(v) return k.convert(k.i32, v) end
  local i64 = function(v) return k.convert(k.i64, v) end
  local f32 = function(v) return k.convert(k.f32, v) end
  local function zero() return k.const(k.f32, 0.0) end

  local function over_lanes(v)
    for _, mask in ipairs {16, 8, 4, 2, 1} do v = v + k.shuffle_xor(v, mask) end
    return v
  end

  ------------------------------------------------------------------------------------------------ tail_mean
  -- Warps take every MEAN_WARPS-th of the rows that are sampled, some at a time; their sums are added in order.
  local function tail_mean(p)
    local column = (k.ctaid() * 32 + k.lane()) * EACH
    local inside = k.lt(column, p.depth)
    local samples = k.min(p.vocab_valid, k.abi.TAIL_SAMPLES)
    local sums = {}
    for d = 1, EACH do sums[d] = zero() end
    sums = k.loop(k.warp(), samples, MEAN_WARPS * MEAN_TOGETHER, sums, function(first, sums)
      local vectors, exists = {}, {}
      for together = 1, MEAN_TOGETHER do
        local i = first + (together - 1) * MEAN_WARPS
        exists[together] = k.lt(i, samples)
        local row = i64(k.select(exists[together], i, 0)) * i64(p.vocab_valid) // i64(samples)
        local from = k.offset(p.weight, (row * p.weight_stride + i64(k.select(inside, column, 0))) * W.bytes)
        vectors[together] = W.load(EACH, from, 0)
      end
      for together, w in ipairs(vectors) do
        local out = {}
        for d = 1, EACH do out[d] = sums[d] + k.select(exists[together], W.value(w[d]), 0.0) end
        sums = out
      end
      return sums
    end)
    local function slot(warp, d) return k.shared() + ((warp * EACH + (d - 1)) * 32 + k.lane()) * 4 end
    for d = 1, EACH do k.shared_store(slot(k.warp(), d), sums[d]) end
    k.barrier()
    k.when(k.eq(k.warp(), 0) & inside, function()
      for d = 1, EACH do
        local sum = k.loop(k.const(k.i32, 0), MEAN_WARPS, 1, zero(), function(warp, sum)
          return sum + k.shared_load(k.f32, slot(warp, d))
        end)
        k.store(p.tail_mean, column + (d - 1), sum / f32(samples))
      end
    end)
  end

  ------------------------------------------------------------------------------------- a row, and its list
  -- The row of this warp, as tail_rows and tail_entries both see it, to the bit.
  local function list_row(p)
    local a = k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    local row = k.load(k.i32, p.index, a)
    local stats = k.load_vector(k.f32, 4, p.stats, row)
    local record = k.load_vector(k.f32, 4, p.record, a)
    local floor, lse = k.load(k.f32, p.tail_floor, a), stats[1] + stats[2]
    local list = i64(a) * i64(p.emit_capacity) * 4
    return {
      a = a, row = row, stats = stats, m = record[1], A = record[2], B = record[3], dz_y = record[4], record = record,
      target = k.load(k.i32, p.local_target, a), scale = k.load(k.f32, p.scale, a), floor = floor,
      above_m = floor - record[1], above_lse = floor - lse, found = k.load(k.i32, p.tail_found, a),
      columns = k.offset(p.tail_column, list), scores = k.offset(p.tail_score, list),
    }
  end

  -- Place i of the list, or, where it has no such place, nothing that is kept.
  local function place_of(p, row, i, length)
    local exists = k.lt(i, length)
    local at = k.select(exists, i, 0)
    local column = k.load(k.i32, row.columns, at, {const = true})
    local score = k.load(k.f32, row.scores, at, {const = true})
    local is_target = exists & k.eq(column, row.target)
    local is_above = exists & k.gt(score + row.above_lse, p.log2_threshold)
    return {column = column, is_target = is_target, is_kept = is_above & ~is_target, u = score + row.above_m,
            t = score + row.floor}
  end

  local function slope(p, row, t)
    return k.branch(k.ne(p.capped, 0), function()
      local y = t / row.scale
      return k.max_nan((1.0 - y) * (1.0 + y), 0.0)
    end, function() return k.const(k.f32, 1.0) end)
  end

  local function is_near_cap(p, row, t) return k.ne(p.capped, 0) & k.gt(k.abs(t), k.abs(row.scale) * NEAR_CAP) end

  -- dz of a column but the target.
  local function gradient(p, row, place)
    return k.exp2(place.u) * k.fma(row.B, place.u, row.A) * slope(p, row, place.t)
  end

  -- u of the target, from the logprob: no other has as many digits. -inf as of a masked column
  local function target_u(row) return k.max_nan(k.fma(row.stats[3], LOG2E, row.stats[2]), S.lowest) end

  local function target_gradient(p, row)
    return k.branch(k.ge(row.target, 0), function() return row.dz_y * slope(p, row, target_u(row) + row.m) end, zero)
  end

  ------------------------------------------------------------------------------------------------ tail_rows
  -- Of the columns that a list keeps, but the target: Σ 2^u, Σ u·2^u, Σ|dz|, how many, how many near a cap.
  local function sum_kept(p, row, length)
    local none = {s = zero(), q = zero(), dz = zero(), kept = k.const(k.i32, 0), capped = k.const(k.i32, 0)}
    local sums = k.loop(k.lane(), length, 32, none, function(i, sums)
      local place = place_of(p, row, i, length)
      local u = k.select(place.is_kept, place.u, S.lowest)
      local e = k.exp2(u)
      local dz = k.select(place.is_kept, k.abs(gradient(p, row, place)), 0.0)
      return {s = sums.s + e, q = k.fma(e, u, sums.q), dz = sums.dz + dz,
              kept = sums.kept + k.zext(k.i32, place.is_kept),
              capped = sums.capped + k.zext(k.i32, place.is_kept & is_near_cap(p, row, place.t))}
    end)
    for name, sum in pairs(sums) do sums[name] = over_lanes(sum) end
    return sums
  end

  -- Of all columns of this shard but the target: Σ 2^u, Σ u·2^u, and what roundings may have made of either. Of u of
  -- the target they make as much as of log2 of the sum.
  local function sum_others(p, row)
    local partial = k.load_vector(k.f32, 4, p.partial, row.row)
    local d = partial[1] - row.m
    local shrink = k.exp2(d)
    local s, q = partial[2] * shrink, k.fma(d, partial[2], partial[3]) * shrink
    local u = k.select(k.ge(row.target, 0), target_u(row), S.lowest)
    local e = k.exp2(u)
    return {s = s - e, q = k.fma(-e, u, q), s_error = s * SUMMED, q_error = k.fma(e, 2.0, k.abs(q)) * SUMMED}
  end

  local function is_any_nan(list)
    local any
    for _, number in ipairs(list) do any = any and any | k.is_nan(number) or k.is_nan(number) end
    return any
  end

  -- What roundings of forward's sums may have made of the target's dz: of g·(1 - p) and e·p·(log p + H), where
  -- |g| <= |A|·s + |B|·s·(H + log2 s) and |e| = |B|·s, but for the row's factor.
  local function target_error(row, A, B)
    local log_s, entropy = row.stats[2], row.stats[4] * LOG2E
    return k.fma((entropy + k.abs(log_s) + 1.0) * 2.0, B, A) * k.exp2(log_s) * SUMMED
  end

  local function tail_rows(p)
    local row = list_row(p)
    -- Of a list that is too long what it has depends on the order in which threads came.
    local is_whole = k.le(row.found, p.emit_capacity)
    local is_near = k.le(row.above_lse, -FLOOR_NEAR) & k.ge(row.above_lse, -FLOOR_FAR)
    local is_clear = k.eq(p.capped, 0) | k.ge(k.abs(row.scale), SCALE_LEAST)
    local is_good = is_whole & is_near & is_clear
    local kept = sum_kept(p, row, k.select(is_good, row.found, 0))
    local others = sum_others(p, row)
    local A, B = k.abs(row.A), k.abs(row.B)
    -- Of what is kept; and of what is not, which is the difference. B·log2 of the sum is in A.
    local kept_error = k.fma(B, k.fma(kept.s, LISTED + 2 * SUMMED, -kept.q * LISTED), A * kept.s * LISTED)
    local error = k.fma(B, others.q_error, A * others.s_error) + kept_error
    local left_s, left_q = k.max_nan(others.s - kept.s, 0.0), k.max_nan(kept.q - others.q, 0.0)
    local left = k.fma(B, left_q, A * left_s) + error
    -- Σ dz of what is left out; a softcap's slopes are not known
    local left_out_s = k.max_nan(k.fma(others.s_error, -LOST / SUMMED, left_s), 0.0)
    local left_out_q = k.max_nan(k.fma(others.q_error, -LOST / SUMMED, left_q), 0.0)
    local left_out = k.select(k.ne(p.capped, 0), 0.0, k.fma(-row.B, left_out_q, row.A * left_out_s))

    -- Σ|dz| is at least |Σ dz|, which needs no list; a softcap's slopes do.
    local all = k.abs(k.fma(row.B, others.q, row.A * others.s)) - error
    local sum = kept.dz - kept_error
    sum = k.max_nan(k.select(k.ne(p.capped, 0), sum, k.max_nan(sum, all)), 0.0)
    sum = (sum + k.max_nan(k.abs(target_gradient(p, row)) - target_error(row, A, B), 0.0)) * FROM_BELOW

    local is_lost, is_silent = is_any_nan(row.stats), S.is_silent(row.record)
    local steep = k.ge(row.target, 0) & is_near_cap(p, row, target_u(row) + row.m)
    local serves = is_good & k.eq(kept.capped, 0) & ~steep & ~k.is_nan(left)
    left = k.select(is_silent, 0.0, k.select(serves, left, infinity))
    local keeps = serves & ~is_silent & ~is_lost
    k.when(k.eq(k.lane(), 0), function()
      k.store(p.tail_left, row.a, k.select(is_lost, infinity, left))
      k.store(p.tail_sum, row.a, k.select(k.lt(sum, infinity) & ~is_lost & ~is_silent, sum, 0.0))
      k.store(p.tail_missed, row.a, k.select(keeps, left_out, 0.0))
      k.store(p.list_length, row.a, k.select(keeps, kept.kept + k.zext(k.i32, k.ge(row.target, 0)), 0))
    end)
  end

  ---------------------------------------------------------------------------------------------- tail_entries
  local function tail_entries(p)
    local row = list_row(p)
    k.exit_if(k.le(k.load(k.i32, p.list_length, row.a), 0))
    local first = k.load(k.i64, p.tail_offsets, row.row)
    local function store(place, column, dz)
      local at = first + i64(place)
      k.store(p.list_column, at, column)
      k.store(p.list_row, at, row.a)
      k.store(p.list_dz, at, dz)
    end
    local has_target, before = k.ge(row.target, 0), (k.const(k.i32, 1) << k.lane()) - 1
    local none = k.const(k.i32, 0)
    -- kept: columns so far but the target; below: those of them below it
    local sums = k.loop(none, row.found, 32, {kept = none, below = none}, function(start, sums)
      local place = place_of(p, row, start + k.lane(), row.found)
      local is_below = k.lt(place.column, row.target)
      local kept, below = k.ballot(place.is_kept), k.ballot(place.is_kept & is_below)
      k.when(place.is_kept, function()
        local behind_target = k.zext(k.i32, has_target & ~is_below)
        store(sums.kept + k.popcount(kept & before) + behind_target, place.column, gradient(p, row, place))
      end)
      return {kept = sums.kept + k.popcount(kept), below = sums.below + k.popcount(below)}
    end)
    k.when(has_target & k.eq(k.lane(), 0), function() store(sums.below, row.target, target_gradient(p, row)) end)
  end

  ----------------------------------------------------------------------------------------------- tail_choose
  -- Calls f(rows, state) with the next rows of this thread, {a, exists} each, and returns the state. Every pass takes
  -- rows in this order, so that a sum over fewer rows is never larger.
  local function each_rows(count, state, f)
    return k.loop(k.const(k.i32, 0), count, CHOOSE_THREADS * CHOOSE_EACH, state, function(base, state)
      local rows = {}
      for j = 1, CHOOSE_EACH do
        local a = base + k.tid() * CHOOSE_EACH + (j - 1)
        local exists = k.lt(a, count)
        rows[j] = {a = k.select(exists, a, 0), exists = exists}
      end
      return f(rows, state)
    end)
  end

  -- Over the CTA: f32 or i32.
  local function over_cta(v)
    local shared = k.shared()
    v = over_lanes(v)
    k.when(k.eq(k.lane(), 0), function() k.shared_store(shared + k.warp() * 4, v) end)
    k.barrier()
    v = over_lanes(k.shared_load(v.type, shared + k.lane() * 4))
    k.barrier()
    return v
  end

  -- The sum of the numbers of these rows, and of their squares.
  local function sum_where(count, ptr, is_in)
    local sums = each_rows(count, {sum = zero(), squares = zero()}, function(rows, sums)
      local values, sum, squares = {}, sums.sum, sums.squares
      for j, row in ipairs(rows) do values[j] = k.load(k.f32, ptr, row.a) end
      for j, row in ipairs(rows) do
        local value = k.select(is_in and row.exists & is_in(values[j]) or row.exists, values[j], 0.0)
        sum, squares = sum + value, k.fma(value, value, squares)
      end
      return {sum = sum, squares = squares}
    end)
    return {sum = over_cta(sums.sum), squares = over_cta(sums.squares)}
  end

  -- The largest of [low, high) for which holds(it); it holds for low, and for all below one that it holds for.
  local function search(low, high, holds)
    local range = {low = k.const(k.i32, low), high = high}
    return k.while_(range, function(now) return k.gt(now.high - now.low, 1) end, function(now)
      local middle = k.lshr(now.low + now.high, 1)
      local good = holds(middle)
      return {low = k.select(good, middle, now.low), high = k.select(good, now.high, middle)}
    end).low
  end

  local function key_of(left) return k.lshr(k.bitcast(k.i32, left), 20) end -- upper 12 bits; of -inf none
  local INFINITE = 0x7f8                            -- of +inf

  -- The key of the rows that are dense, from below: 1 for numbers that are no larger than 0. The bound holds for sums, and
  -- for sums of squares, too: else a few rows might have all that may be left out, and lose most of their own gradient.
  local function choose_key(p, count, total)
    local allowed, squares = total.sum * p.tail, total.squares * p.tail * p.tail
    return search(1, k.const(k.i32, INFINITE + 1), function(key)
      local left = sum_where(count, p.tail_left, function(left) return k.lt(key_of(left), key) end)
      return k.le(left.sum, allowed) & k.le(left.squares, squares)
    end)
  end

  -- How many entries rows below a key have that are no longer than so, in 64 bits: 16 of each number at a time.
  local function count_entries(p, count, key, longest)
    local none = k.const(k.i64, 0)
    local mine = each_rows(count, none, function(rows, sum)
      local left, length = {}, {}
      for j, row in ipairs(rows) do
        left[j], length[j] = k.load(k.f32, p.tail_left, row.a), k.load(k.i32, p.list_length, row.a)
      end
      for j, row in ipairs(rows) do
        local is_in = row.exists & k.lt(key_of(left[j]), key) & k.le(length[j], longest)
        sum = sum + i64(k.select(is_in, length[j], 0))
      end
      return sum
    end)
    local low, high = over_cta(i32(mine & 0xffff)), over_cta(i32(k.lshr(mine, 16)))
    return (i64(high) << 16) + i64(low)
  end

  -- The longest lists that are served.
  local function choose_length(p, count, key)
    local function fits(longest) return k.le(count_entries(p, count, key, longest), i64(p.list_capacity)) end
    local most = k.const(k.i32, k.abi.EMIT_MOST + 1) -- and the target
    return k.branch(fits(most), function() return most end, function() return search(0, most, fits) end)
  end

  local function load_or_zero(ptr, row)
    return k.branch(k.is_null(ptr), zero, function() return k.load(k.f32, ptr, row) end)
  end

  local function tail_choose(p)
    local count = k.load(k.i32, p.count, 0)
    local total = sum_where(count, p.tail_sum)
    local key = choose_key(p, count, total)
    local longest = choose_length(p, count, key)

    local none = k.const(k.i32, 0)
    local done = each_rows(count, {entries = none, dense = none, left = zero()}, function(rows, done)
      local number, dense, left = none, done.dense, done.left
      for _, row in ipairs(rows) do
        local lacks, length = k.load(k.f32, p.tail_left, row.a), k.load(k.i32, p.list_length, row.a)
        local is_dense = k.ge(key_of(lacks), key) | k.gt(length, longest)
        row.is_dense, row.is_listed = row.exists & is_dense, row.exists & ~is_dense
        row.length = k.select(row.is_listed, length, 0)
        number, dense = number + row.length, dense + k.zext(k.i32, row.is_dense)
        left = left + k.select(row.is_listed, lacks, 0.0)
      end
      local before, found = scan(number, k.shared(), CHOOSE_WARPS)
      local first = done.entries + before
      for _, row in ipairs(rows) do
        k.when(row.exists, function()
          local i = k.load(k.i32, p.index, row.a)
          k.store(p.tail_offsets, i, i64(first))
          k.when(row.is_dense, function() k.store(p.list_length, row.a, k.const(k.i32, ELSEWHERE)) end)
          local function pass(to, from)
            k.when(~k.is_null(to), function() k.store(to, i, k.select(row.is_dense, load_or_zero(from, i), 0.0)) end)
          end
          pass(p.tail_logprob, p.grad_logprob)
          pass(p.tail_entropy, p.grad_entropy)
        end)
        first = first + row.length
      end
      return {entries = done.entries + found, dense = dense, left = left}
    end)
    local left, dense = over_cta(done.left), over_cta(done.dense)
    k.when(k.eq(k.tid(), 0), function()
      k.store(p.tail_total, 0, done.entries)
      k.when(~k.is_null(p.report), function()
        for i, number in ipairs {left, total.sum, f32(dense), f32(done.entries)} do k.store(p.report, i - 1, number) end
      end)
    end)
  end

  local function entry(name, threads, shared_bytes, body)
    k.kernel {entry = name, threads = threads, shared_bytes = shared_bytes, body = body}
  end
  k.import "own_scores" (k, spec, "tail_target")
  entry("tail_mean", MEAN_WARPS * 32, MEAN_WARPS * 32 * EACH * 4, tail_mean)
  entry("tail_rows", THREADS, 0, tail_rows)
  entry("tail_choose", CHOOSE_THREADS, CHOOSE_WARPS * 4, tail_choose)
  entry("tail_entries", THREADS, 0, tail_entries)
end
