-- emitted.lua: what stands before part emit, and between it and the backward pass: see runtime/kernel/abi.h for
-- each entry.
--
--   emit_floor   floor[a] = log2_threshold + max(maximum of the first columns, LSE of a near policy, target's score,
--                target's score less its logprob under a near policy)
--   flat_rows    how many rows have more of their mass in columns like the first ones than lists may leave out
--   flat_gate    no active rows in the order that a step does not take
--   emit_sort    the columns that a row has listed, of all bins that it needs and has whole, in ascending order
--
-- Each of them is a lower bound of the row's LSE, or the caller's guess of it, and depends on nothing but the row:
-- so does what is listed. Places of a bin are in the order in which threads came; once sorted, bits follow from the row.

local LOG2E = 1.4426950408889634
local THREADS, SORT_THREADS = 256, 32                -- most lists are short
local LAST = 0x7fffffff                              -- stands behind every column

return function(k, spec)
  local S, B = k.import "score" (k), k.import "bins" (k)
  local MOST = k.abi.EMIT_MOST
  local i64 = function(v) return k.convert(k.i64, v) end

  ----------------------------------------------------------------------------------------------- emit_floor
  local function first_maximum(p, a)
    local at = k.convert(k.i64, a - p.row_begin)
    local s = k.load(k.f32, p.part, at + p.capacity)
    return k.select(k.is_nan(s), s, k.load(k.f32, p.part, at)) -- the maximum itself drops NaN
  end

  local function target_score(p, a)
    local x = k.load(k.f32, p.zy, a)
    local y = k.branch(k.ne(p.capped, 0), function() return S.cap(x, p.cap_in) end, function() return x end)
    return y * k.load(k.f32, p.scale, a)
  end

  -- The target's score, or the LSE that follows from it and the logprob of a near policy, if that is more. An infinite
  -- logprob says nothing.
  local function target_floor(p, a)
    local t = target_score(p, a)
    return k.branch(k.is_null(p.old_logprob), function() return t end, function()
      local logprob = k.load(k.f32, p.old_logprob, k.load(k.i32, p.index, a))
      local is_infinite = k.eq(k.abs(logprob), 1.0 / 0.0)
      return k.max_nan(t, k.select(is_infinite, t, k.fma(logprob, -LOG2E, t)))
    end)
  end

  local function emit_floor(p)
    local a = p.row_begin + k.ctaid() * THREADS + k.tid()
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local lowest = function() return k.const(k.f32, -1.0 / 0.0) end
    local has_target = ~k.is_null(p.zy) & k.ge(k.load(k.i32, p.local_target, a), 0)
    local known = k.branch(k.is_null(p.part), lowest, function() return first_maximum(p, a) end)
    known = k.max_nan(known, k.branch(k.is_null(p.old_lse), lowest,
      function() return k.load(k.f32, p.old_lse, k.load(k.i32, p.index, a)) * LOG2E end))
    known = k.max_nan(known, k.branch(has_target, function() return target_floor(p, a) end, lowest))
    k.store(p.floor, a, k.max_nan(known + p.log2_threshold, S.lowest))
    local none = {}
    for i = 1, 4 do none[i] = k.const(k.i32, 0) end
    k.store(p.emit_gate, a, k.const(k.f32, 0.0))
    for part = 0, k.abi.EMIT_BINS // 4 - 1 do
      k.store_vector(p.emit_count, a * (k.abi.EMIT_BINS // 4) + part, none)
    end
  end

  ----------------------------------------------------------------------------------- flat_rows and flat_gate
  local function flat_rows(p)
    local last = k.min(k.load(k.i32, p.count, 0), p.row_end)
    local a = p.row_begin + k.ctaid() * THREADS + k.tid()
    local exists = k.lt(a, last)
    local row = k.select(exists, a, p.row_begin)
    local at = i64(row - p.row_begin)
    local lse = k.load(k.f32, p.part, at) + k.log2(k.load(k.f32, p.part, at + p.capacity))
    local flat = k.ballot(exists & k.gt(lse, k.load(k.f32, p.floor, row) + p.above))
    k.when(k.eq(k.lane(), 0) & k.ne(flat, 0), function() k.atomic_add(p.flat, 0, k.popcount(flat)) end)
  end

  local function flat_gate(p)
    local count = k.load(k.i32, p.count, 0)
    local is_flat = k.branch(k.ne(p.decides, 0), function()
      local flat = i64(k.load(k.i32, p.flat, 0))
      local is_flat = k.zext(k.i32, k.gt(count, 0) & k.ge(flat * 3, i64(count) * 2))
      k.when(k.eq(k.tid(), 0), function() k.store(p.flat, 1, is_flat) end)
      return is_flat
    end, function() return k.load(k.i32, p.flat, 1) end)
    local is_taken = k.eq(is_flat, p.wants)
    k.when(k.eq(k.tid(), 0) & ~is_taken, function() k.store(p.count, 0, k.const(k.i32, 0)) end)
    k.when(k.eq(k.tid(), 0) & is_taken & ~k.is_null(p.report), function()
      for i = 0, 3 do k.store(p.report, i, i == 2 and k.convert(k.f32, count) or k.const(k.f32, 0.0)) end
    end)
  end

  ----------------------------------------------------------------------------------------------- emit_sort
  -- Where the bins of a row's list stand in it, one behind the other: the first place of each, and the length.
  local function starts_of(counts, first)
    local starts, length = {}, k.const(k.i32, 0)
    for i, count in ipairs(counts) do
      starts[i] = length
      length = length + k.select(k.ge(first, i), 0, count)
    end
    return starts, length
  end

  local function emit_sort(p)
    local a = k.ctaid()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    local counts = B.counts(p.emit_count, a)
    local floor, m_s = k.load(k.f32, p.floor, a), k.load_vector(k.f32, 2, p.partial, k.load(k.i32, p.index, a) * 2)
    local first = B.whole(counts, p.emit_capacity, B.first(m_s[1], m_s[2], p.log2_threshold, floor))
    local starts, length = starts_of(counts, first)
    local shared, row = k.shared(), i64(a) * i64(p.emit_capacity)
    local lift = k.convert(k.f32, first * k.abi.EMIT_BIN_WIDTH)
    local function column_at(i) return shared + i * 4 end
    local function score_at(i) return shared + (MOST * 4 + i * 4) end
    local function each(count, body) k.loop(k.tid(), count, SORT_THREADS, nil, body) end

    -- size: the power of two that holds them; places behind them sort last
    local size = k.while_(k.const(k.i32, 2), function(size) return k.lt(size, length) end,
      function(size) return size << 1 end)
    each(length, function(i)
      local place = i                                   -- of the last bin that does not start behind it
      for bin, start in ipairs(starts) do
        local _, place_of_bin = B.places(bin - 1, p.emit_capacity)
        place = k.select(k.ge(i, start), place_of_bin + (i - start), place)
      end
      local at = row + i64(place)
      local entry = k.load_vector(k.i32, 2, p.emit_entry, at)
      k.shared_store(column_at(i), entry[1])
      k.shared_store(score_at(i), k.bitcast(k.f32, entry[2]) - lift)
    end)
    each(size - length, function(j) k.shared_store(column_at(length + j), k.const(k.i32, LAST)) end)
    k.barrier()

    -- Exchanges places i and i + stride, where they stand the wrong way for the bitonic run of `run` that they are in.
    local function exchange(pair, stride, run)
      local low = (pair << 1) - (pair & (stride - 1))
      local high = low + stride
      local x, y = k.shared_load(k.i32, column_at(low)), k.shared_load(k.i32, column_at(high))
      k.when(k.eq(k.zext(k.i32, k.gt(x, y)), k.zext(k.i32, k.eq(low & run, 0))), function()
        local u, v = k.shared_load(k.f32, score_at(low)), k.shared_load(k.f32, score_at(high))
        k.shared_store(column_at(low), y)
        k.shared_store(column_at(high), x)
        k.shared_store(score_at(low), v)
        k.shared_store(score_at(high), u)
      end)
    end
    k.while_(k.const(k.i32, 2), function(run) return k.le(run, size) end, function(run)
      k.while_(run >> 1, function(stride) return k.gt(stride, 0) end, function(stride)
        each(size >> 1, function(pair) exchange(pair, stride, run) end)
        k.barrier()
        return stride >> 1
      end)
      return run << 1
    end)

    each(length, function(i)
      local at = row + i64(i)
      k.store(p.tail_column, at, k.shared_load(k.i32, column_at(i)))
      k.store(p.tail_score, at, k.shared_load(k.f32, score_at(i)))
    end)
    k.when(k.eq(k.tid(), 0), function()
      k.store(p.tail_floor, a, floor + lift)
      k.store(p.tail_found, a, k.select(k.ge(first, k.abi.EMIT_BINS), p.emit_capacity + 1, length))
    end)
  end

  k.kernel {entry = "emit_floor", threads = THREADS, shared_bytes = 0, body = emit_floor}
  k.kernel {entry = "flat_rows", threads = THREADS, shared_bytes = 0, body = flat_rows}
  k.kernel {entry = "flat_gate", threads = 32, shared_bytes = 0, body = flat_gate}
  k.kernel {entry = "emit_sort", threads = SORT_THREADS, shared_bytes = MOST * 8, body = emit_sort}
end
