-- kept.lua: from saved exponentials (keep.lua) to gradients: see runtime/kernel/abi.h for each entry.
--
--   kept[a][v] = 2^(t - k_a)        dz = 2^(t-m)·(A + B·(t - m)) = kept·2^(k_a-m)·(A + B·(log2 kept + k_a - m))
--   plain form, B = 0               dz = factor_a·kept, factor_a = A·2^(k_a-m), with the target's element exchanged for
--                                   expm1(logprob)·2^(lse-k_a): its product with factor_a is dz_y
--   with softcap                    dz ← dz·(1 - tanh²), which plain rows have had in kept but for the target's element
--
--   keep_reference   k_a of each active row, before its scores are kept
--   keep_finish      factor of each row, the target's element, and which blocks of rows are to be redone
--   keep_expand      kept -> dz in place, with the column sums that the bias wants
--   keep_gather      factor_a·h_a of the active rows side by side
--   direction_*      direction.lua

local LOG2E = 1.4426950408889634
-- What the reference stands above: the maximum of the first columns, which lse exceeds by up to 160 octaves then, or
-- the LSE of a policy near this one.
local ABOVE_FIRST, ABOVE_OLD = 60.0, 20.0
-- lse - k_a where kept serves: of bf16's normal numbers, 2^-126 on, 60 octaves lie below the LSE, and no sum overflows.
local LOWEST, HIGHEST = -66.0, 100.0
local LEAST = 0x1p-126                              -- the smallest normal number
-- What saved exponentials are multiplied by may be from 2^-100 to 2^100: hidden times it then stays in fp32's range, where
-- dz itself is in it.
local LEAST_FACTOR, MOST_FACTOR = 0x1p-100, 0x1p100
-- |row_scale| of capped rows from which on kept and stats determine slopes: in the plain form where stats give tanh to
-- 2^-10 (and above 2^-25, below which Hopper's online.lua moves scores), in the expanded form where log2 of what was
-- kept, rounded, moves them by less than that rounding
local LEAST_SCALE, LEAST_SCALE_EXPANDED = 0x1p-9, 4.0
-- Stats give the target's slope where its t is no less short of the cap: they know t to 2^-19, and so the slope to 2^-9,
-- bf16's rounding. Else kept gives it, where its exponential is so large that no slope, 2^-24 the least, vanishes.
local LEAST_DISTANCE, LEAST_EXPONENT = 0x1p-10, -102.0
-- In the expanded form rounding moves log2 of kept by 2^-8·LOG2E: slopes by less than their 2^-8 where t is no less short
-- of the cap. Rows whose mean t is nearer have hardly a gradient but what such slopes make, nor have those with such a
-- target that is unlikely.
local LEAST_DISTANCE_EXPANDED = LOG2E
local ROUNDING = 0x1p-8 * LOG2E                     -- the most that bf16's rounding moves log2 of kept by
local ROWS, COLUMNS, GATHERED = k.abi.KEPT_BLOCK_ROWS, k.abi.EXPAND_COLUMNS, k.abi.GATHER_ROWS
local THREADS, EACH = 256, 8                        -- of a CTA; columns of a thread of keep_expand, 16 bytes
local IN_FLIGHT = 4                                 -- rows that a thread of keep_expand loads at a time

return function(k, spec)
  if spec.dtype ~= "bf16" then
    error("dtype: " .. spec.dtype .. " lacks the range of exponentials; bf16 is accepted")
  end
  local F = k.import "math64" (k)
  local S, L = k.import "score" (k), k.import "largest" (k)
  local infinity = 1.0 / 0.0
  local f64 = function(v) return k.convert(k.f64, v) end
  local i64 = function(v) return k.convert(k.i64, v) end
  local zero = function() return k.const(k.f32, 0.0) end

  local function keep_reference(p)
    local a = p.row_begin + k.ctaid() * THREADS + k.tid()
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    k.store(p.reference, a, k.branch(k.is_null(p.old_lse),
      function() return k.load(k.f32, p.part, a - p.row_begin) + ABOVE_FIRST end,
      function() return k.fma(k.load(k.f32, p.old_lse, k.load(k.i32, p.index, a)), LOG2E, ABOVE_OLD) end))
  end

  ----------------------------------------------------------------------------------------------- blocks
  -- The active rows of this CTA, one a thread; none is to be redone yet. a: the thread's row, where it exists; at: one
  -- that does. A CTA without rows ends here.
  local function open_block(p)
    local count = k.load(k.i32, p.count, 0)
    local first, last = p.row_begin + k.ctaid() * ROWS, k.min(count, p.row_end)
    k.when(k.eq(k.tid(), 0), function() k.store(p.redo, k.ctaid(), k.const(k.i32, 0)) end)
    k.exit_if(k.ge(first, last))
    local a = first + k.tid()
    local exists = k.lt(a, last)
    return {count = count, first = first, a = a, exists = exists, at = k.select(exists, a, first)}
  end

  -- Whether a condition holds in any thread of the CTA. Uses a word of shared memory a warp.
  local function any_thread(condition)
    local words, in_warp = k.shared(), k.any(condition)
    k.when(k.eq(k.lane(), 0), function() k.shared_store(words + k.warp() * 4, k.zext(k.i32, in_warp)) end)
    k.barrier()
    return k.any(k.ne(k.shared_load(k.i32, words + k.lane() * 4), 0))
  end

  -- Has the block redone, and returns whether it is, where a row of it is out of range: false in threads without a row.
  local function redo_block(p, block, is_out_of_range)
    local redo = any_thread(is_out_of_range)
    k.when(k.eq(k.tid(), 0) & redo, function() k.store(p.redo, k.ctaid(), block.count) end)
    return redo
  end

  ----------------------------------------------------------------------------------------------- keep_finish
  -- What is known of active row a. spread: lse - k_a; silent: it has no upstream gradient
  local function load_row(p, a)
    local stats = k.load_vector(k.f32, 4, p.stats, k.load(k.i32, p.index, a))
    local record = k.load_vector(k.f32, 4, p.record, a)
    local reference, m, log_s = k.load(k.f32, p.reference, a), stats[1], stats[2]
    local spread, logprob = (m - reference) + log_s, stats[3]
    local power = k.exp2(reference - m)
    return {
      m = m, log_s = log_s, spread = spread, logprob = logprob, exponent = k.fma(logprob, LOG2E, spread),
      mean = k.fma(stats[4], -LOG2E, m + log_s),          -- of t; where there is an entropy
      scale = k.load(k.f32, p.scale, a), target = k.load(k.i32, p.local_target, a),
      finite = k.lt(k.abs(m), infinity) & k.lt(k.abs(log_s), infinity),
      silent = S.is_silent(record),
      factor = record[2] * power,
      size = k.abs(record[2]) + k.abs(record[3]) * 256.0, power = power, -- dz: at most size·power·kept
    }
  end

  -- t = row_scale·tanh of the target: lse less what logprob is short of 0.
  local function target_score(row) return f64(row.m) + (f64(row.log_s) + f64(row.logprob) * LOG2E) end

  local function is_near_cap(p, row)
    local least = k.select(k.ne(p.plain, 0), k.const(k.f64, LEAST_DISTANCE), LEAST_DISTANCE_EXPANDED)
    return k.ne(p.capped, 0) & k.lt(f64(k.abs(row.scale)) - k.abs(target_score(row)), least)
  end

  -- 1 - tanh² at the target, of which kept is slope·2^exponent.
  local function target_slope(p, row, kept)
    return k.branch(is_near_cap(p, row), function()
      return f64(k.convert(k.f32, kept()) * k.exp2(-row.exponent))
    end, function()
      local tanh = k.branch(k.ne(p.capped, 0), function() return target_score(row) / f64(row.scale) end,
        function() return k.const(k.f64, 0.0) end)
      return (1.0 - tanh) * (1.0 + tanh)
    end)
  end

  local function is_factor_out_of_range(row)
    local factor = row.size * row.power
    return k.gt(factor, MOST_FACTOR) | k.lt(factor, LEAST_FACTOR) & k.gt(row.size, 0.0)
  end

  -- The target's slope must be known: the expanded form takes it from kept, the plain one near the cap.
  local function is_out_of_range(p, row)
    local inside = k.ge(row.spread, LOWEST) & k.le(row.spread, HIGHEST) & ~is_factor_out_of_range(row)
    local plain = k.ne(p.plain, 0)
    local least_exponent = k.select(plain, k.const(k.f32, LEAST_EXPONENT), -125.0)
    local gone, near_target = k.lt(row.exponent, least_exponent), is_near_cap(p, row)
    local lost = gone & near_target | ~plain & (gone | near_target)
    local vanished = lost & ~row.silent & k.ge(row.target, 0)
    local least_scale = k.select(plain, k.const(k.f32, LEAST_SCALE), LEAST_SCALE_EXPANDED)
    local near = ~plain & k.lt(k.abs(row.scale) - k.abs(row.mean), LEAST_DISTANCE_EXPANDED)
    local flat = k.ne(p.capped, 0) & (k.lt(k.abs(row.scale), least_scale) | near)
    return row.finite & (~inside | vanished | flat)
  end

  -- Zeros in the rows first + i for the bits i of a mask that the warp shares.
  local function store_zeros(p, first, mask)
    k.while_(mask, function(rest) return k.ne(rest, 0) end, function(rest)
      local row = first + k.popcount((rest & -rest) - 1)
      local to = k.offset(p.kept, i64(row) * p.kept_stride * 2)
      local nothing = k.const(k.i32, 0)
      k.loop(k.lane(), (p.vocab_valid + (EACH - 1)) // EACH, 32, nil, function(i)
        k.store_vector(to, i, {nothing, nothing, nothing, nothing})
      end)
      return rest & (rest - 1)
    end)
  end

  local function keep_finish(p)
    local block = open_block(p)
    local first, a, exists = block.first, block.a, block.exists
    local row = load_row(p, block.at)
    local redo = redo_block(p, block, exists & is_out_of_range(p, row))

    local plain = k.ne(p.plain, 0) & ~redo
    k.when(exists, function()
      k.store(p.factor, a, k.select(row.silent, 0.0, k.select(plain, row.factor, 1.0)))
    end)
    local lost = row.silent & ~row.finite
    k.when(exists & plain & ~lost & k.ge(row.target, 0), function()
      local at = i64(a - p.row_begin) * p.kept_stride + i64(row.target)
      local slope = target_slope(p, row, function() return k.load(k.bf16, p.kept, at) end)
      local value = F.expm1(f64(row.logprob)) * f64(k.exp2(row.spread)) * slope
      k.store(p.kept, at, k.convert(k.bf16, k.convert(k.f32, value)))
    end)
    store_zeros(p, first - p.row_begin + k.warp() * 32, k.ballot(exists & ~redo & lost))
  end

  ----------------------------------------------------------------------------------------------- keep_expand
  local function pair_of(word) return k.bitcast(k.f32, word << 16), k.bitcast(k.f32, word & -65536) end

  -- What turns kept of one row into dz: dz = kept·(offset + slope·log2 kept), times 1 - tanh².
  local function load_gradient(p, a, column, capped)
    local record = k.load_vector(k.f32, 4, p.record, a)
    local silent = S.is_silent(record)                    -- then reference and m may be anything
    local reference = k.select(silent, 0.0, k.load(k.f32, p.reference, a))
    local shift = reference - k.select(silent, 0.0, record[1])
    local power = k.exp2(shift)
    return {
      m = record[1], A = record[2], B = record[3], power = power, scale = function() return k.load(k.f32, p.scale, a) end,
      offset = k.fma(record[3], shift, record[2]) * power, slope = record[3] * power, dz_y = record[4],
      target = k.load(k.i32, p.local_target, a) - column, -- among the columns of this thread
      reference = reference, per_scale = capped and k.rcp(k.load(k.f32, p.scale, a)),
    }
  end

  local function log2_of(value) return k.log2(k.max(value, LEAST)) end

  -- The target's element, and with a softcap times 1 - tanh².
  local function finish(row, dz, log, column, capped)
    dz = k.select(k.eq(row.target, column), row.dz_y, dz)
    if not capped then return dz end
    local y = (log + row.reference) * row.per_scale       -- tanh, as near as kept's rounding allows
    local is_capped = k.ge(k.abs(y) + k.abs(row.per_scale) * ROUNDING, 1.0)
    return dz * k.select(is_capped, 0.0, (1.0 - y) * (1.0 + y))
  end

  local function gradient(row, value, column, capped)
    local log = log2_of(value)                            -- 0 stays 0 below
    return finish(row, value * k.fma(row.slope, log, row.offset), log, column, capped)
  end

  -- dz of EACH columns of a row, a pair at a time: a function of the pair. Where an entropy may have a gradient, that of
  -- the row's largest score is exact.
  local function gradients(row, words, capped)
    if not spec.entropy then
      return function(i)
        local low, high = pair_of(words[i])
        return gradient(row, low, 2 * i - 2, capped), gradient(row, high, 2 * i - 1, capped)
      end
    end
    local kept, dz, largest = {}, {}, nil
    for i = 1, EACH // 2 do kept[2 * i - 1], kept[2 * i] = pair_of(words[i]) end
    for i, value in ipairs(kept) do
      dz[i] = gradient(row, L.size(value), i - 1, capped)
      largest = largest and k.max(largest, L.size(value)) or L.size(value)
    end
    dz = k.branch(L.is_largest(largest, row.power), function()
      local exact, out = L.gradient(row.m, row.A, row.B, row.scale()), {}
      for i, value in ipairs(kept) do
        local size = L.size(value)
        local instead = finish(row, exact(L.is_below(value)), log2_of(size), i - 1, capped)
        out[i] = k.select(L.is_largest(size, row.power), instead, dz[i])
      end
      return out
    end, function() return dz end)
    return function(i) return dz[2 * i - 1], dz[2 * i] end
  end

  -- `rows` rows from active row a on: their loads overlap. Adds to the column sums.
  local function expand_rows(p, a, rows, column, sums, capped)
    local vectors, of_row, out = {}, {}, {}
    local first = k.offset(p.kept, i64(column) * 2)
    local function at(r) return k.offset(first, i64(a + r - p.row_begin) * p.kept_stride * 2) end
    for r = 1, rows do vectors[r] = k.load_vector(k.i32, 4, at(r - 1), 0) end
    for r = 1, rows do of_row[r] = load_gradient(p, a + (r - 1), column, capped) end
    for i = 1, EACH do out[i] = sums[i] end
    for r = 1, rows do
      local pair, words = gradients(of_row[r], vectors[r], capped), {}
      for i = 1, 4 do
        local low, high = pair(i)
        out[2 * i - 1], out[2 * i] = out[2 * i - 1] + low, out[2 * i] + high
        words[i] = k.pack(k.bf16, low, high)
      end
      k.store_vector(at(r - 1), 0, words)
    end
    return out
  end

  local function expand(p, tile, column, capped)
    local first = p.row_begin + tile * p.tile_rows
    local last = k.min(k.min(k.load(k.i32, p.count, 0), p.row_end), first + p.tile_rows)
    local whole = k.max(last - first, 0) // IN_FLIGHT * IN_FLIGHT
    local sums = {}
    for i = 1, EACH do sums[i] = zero() end
    sums = k.loop(first, first + whole, IN_FLIGHT, sums, function(a, now)
      return expand_rows(p, a, IN_FLIGHT, column, now, capped)
    end)
    sums = k.loop(first + whole, last, 1, sums, function(a, now) return expand_rows(p, a, 1, column, now, capped) end)
    k.when(~k.is_null(p.bias_part), function()
      local at = i64(tile) * i64(p.vocab_valid) + i64(column)
      for i = 1, EACH do
        k.when(k.lt(column + (i - 1), p.vocab_valid), function() k.store(p.bias_part, at + (i - 1), sums[i]) end)
      end
    end)
  end

  local function keep_expand(p)
    local across = (p.vocab_valid + (COLUMNS - 1)) // COLUMNS
    local tile = k.ctaid() // across
    local column = (k.ctaid() - tile * across) * COLUMNS + k.tid() * EACH
    local is_redone = k.ne(k.load(k.i32, p.redo, tile * p.tile_rows // ROWS), 0)
    k.exit_if(is_redone | k.ge(column, p.vocab_valid))
    k.branch(k.ne(p.capped, 0), function() expand(p, tile, column, true) end,
      function() expand(p, tile, column, false) end)
  end

  ----------------------------------------------------------------------------------------------- keep_gather
  local function keep_gather(p)
    local active = k.max(k.min(k.load(k.i32, p.count, 0), p.row_end) - p.row_begin, 0)
    local a = k.ctaid() * (THREADS // 32) + k.warp()      -- of the chunk
    k.exit_if(k.ge(a, k.min((active + (GATHERED - 1)) & -GATHERED, p.row_end - p.row_begin)))
    local exists = k.lt(a, active)
    local at = p.row_begin + k.select(exists, a, 0)
    local factor = k.branch(exists, function() return k.load(k.f32, p.factor, at) end, zero)
    local row = k.branch(k.ne(factor, 0.0), function() return k.load(k.i32, p.index, at) end,
      function() return k.const(k.i32, 0) end)
    local from = k.offset(p.hidden, i64(row) * p.hidden_stride * 2)
    local to = k.offset(p.out, i64(a) * p.out_stride * 2)
    local function scaled(value) return k.select(k.ne(factor, 0.0), value * factor, 0.0) end

    local words = spec.alignment >= 16 and p.depth // EACH or k.const(k.i32, 0)
    k.loop(k.lane(), words, 32, nil, function(i)
      local vector = k.load_vector(k.i32, 4, from, i, {const = true})
      for j = 1, 4 do
        local low, high = pair_of(vector[j])
        vector[j] = k.pack(k.bf16, scaled(low), scaled(high))
      end
      k.store_vector(to, i, vector)
    end)
    k.loop(words * EACH + k.lane(), p.depth, 32, nil, function(i)
      local value = k.convert(k.f32, k.load(k.bf16, from, i, {const = true}))
      k.store(to, i, k.convert(k.bf16, scaled(value)))
    end)
  end

  local function entry(name, threads, shared_bytes, body)
    k.kernel {entry = name, threads = threads, shared_bytes = shared_bytes, body = body}
  end
  entry("keep_reference", THREADS, 0, keep_reference)
  entry("keep_finish", ROWS, ROWS // 32 * 4, keep_finish)
  entry("keep_expand", THREADS, 0, keep_expand)
  entry("keep_gather", THREADS, 0, keep_gather)
  k.import "direction" (k, spec, {
    entry = entry, open_block = open_block, redo_block = redo_block,
    LOWEST = LOWEST, HIGHEST = HIGHEST, LEAST_SCALE = LEAST_SCALE,
  })
end
