-- targets.lua: K targets a row: see runtime/kernel/abi.h for each entry.
--
--   targets_rows     one target that stands for a row's, sums of their upstream gradients
--   targets_sort     a row's columns, ascending
--   targets_finish   logprob of each target, entropy, stats, from the partials of all shards and the targets' scores
--   targets_strike   no exponentials at a row's targets
--   targets_patch    dz at a row's targets: factor·(Σ_k g_k·[v = y_k] - G·p_v - e·p_v·(log p_v + H))
--   targets_bias     what targets add to the column sums of dz
--
-- Near p_v = 1 the element is (Σ_k g_k·[v = y_k] - G) - G·expm1(log p_v), with the logprob of stats: one column alone
-- has a p above 1/2, and stats hold the largest logprob of a row's targets.

local THREADS, SORT_THREADS = 256, 128
local WARPS = THREADS // 32
local LN2 = 0.6931471805599453
local ACTIVE, BAD = k.abi.ROW_ACTIVE, k.abi.ROW_BAD
local NONE, MOST = k.abi.TARGET_NONE, k.abi.TARGET_PLACES
local OF_BIT, OF_WORD = k.abi.TARGET_COLUMNS, k.abi.TARGET_COLUMNS * k.abi.TARGET_BITS

return function(k, spec)
  local S, F, O = k.import "score" (k), k.import "math64" (k), k.import "outputs" (k)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  local id_type = spec.target_dtype == "int64" and k.i64 or k.i32
  local nan, infinity = 0.0 / 0.0, 1.0 / 0.0
  local i32 = function(v) return k.convert(k.i32, v) end
  local i64 = function(v) return k.convert(k.i64, v) end
  local f32 = function(v) return k.convert(k.f32, v) end
  local f64 = function(v) return k.convert(k.f64, v) end
  local zero = function(type) return k.const(type, 0) end

  local function store_if(ptr, index, value)
    k.when(~k.is_null(ptr), function() k.store(ptr, index, value) end)
  end

  local function load_or_zero(ptr, index)
    return k.branch(k.is_null(ptr), function() return k.const(k.f32, 0.0) end,
      function() return k.load(k.f32, ptr, index) end)
  end

  -- f32 or f64
  local function shuffle(v, mask)
    if v.type ~= k.f64 then return k.shuffle_xor(v, mask) end
    local bits = k.bitcast(k.i64, v)
    local low, high = k.shuffle_xor(i32(bits), mask), k.shuffle_xor(i32(k.lshr(bits, 32)), mask)
    return k.bitcast(k.f64, k.zext(k.i64, low) | (i64(high) << 32))
  end

  local function over_lanes(v, join)
    for _, mask in ipairs {16, 8, 4, 2, 1} do v = join(v, shuffle(v, mask)) end
    return v
  end
  local function add(x, y) return x + y end
  local LEAST = 0x1p-60                               -- of Σ|g_k|, that is Σ g_k rounded

  ----------------------------------------------------------------------------------------------- targets_rows
  local function targets_rows(p)
    local row = i64(k.ctaid()) * WARPS + i64(k.warp())
    k.exit_if(k.ge(row, p.n))
    local first = row * i64(p.targets)
    local empty = {found = zero(k.i32), id = zero(id_type), is_outside = zero(k.i32), gradient = k.const(k.f64, 0.0),
                   weight = k.const(k.f64, 0.0)}
    -- Of this lane's: the last one that is outside, else the last one that is not ignored.
    local mine = k.loop(k.lane(), p.targets, 32, empty, function(i, mine)
      local at = first + i64(i)
      local stored = k.load(id_type, p.target, at)
      local id = i64(stored)
      local counts = k.ne(id, p.ignore_index)
      local is_outside = counts & (k.lt(id, 0) | k.ge(id, p.vocab_total))
      local takes = is_outside | counts & k.eq(mine.is_outside, 0)
      local g = f64(k.select(counts, load_or_zero(p.grad_logprob, at), 0.0))
      store_if(p.score, at, k.const(k.f32, -infinity))
      return {found = k.select(counts, k.const(k.i32, 1), mine.found), id = k.select(takes, stored, mine.id),
              is_outside = k.select(is_outside, k.const(k.i32, 1), mine.is_outside), gradient = mine.gradient + g,
              weight = mine.weight + k.abs(g)}
    end)
    local outside, found = k.ballot(k.ne(mine.is_outside, 0)), k.ballot(k.ne(mine.found, 0))
    local lanes = k.select(k.ne(outside, 0), outside, found)
    local chosen = k.popcount((lanes & -lanes) - 1)     -- 32 of none
    k.when(k.eq(k.lane(), chosen), function() k.store(p.target_row, row, mine.id) end)
    local gradient, weight = over_lanes(mine.gradient, add), over_lanes(mine.weight, add)
    k.when(k.eq(k.lane(), 0), function()
      k.when(k.eq(lanes, 0), function() k.store(p.target_row, row, k.convert(id_type, p.ignore_index)) end)
      store_if(p.target_weight, row, f32(weight))
      local least = weight * LEAST
      least = k.select(k.lt(gradient, 0.0), -least, least)
      store_if(p.target_gradient, row, f32(k.select(k.lt(k.abs(gradient), k.abs(least)), least, gradient)))
      store_if(p.target_exact, row, gradient)
    end)
  end

  ----------------------------------------------------------------------------------------------- targets_sort
  -- Before target i of a row: those of a lower column, and of the same column those before it. Places behind the row's
  -- targets, up to a multiple of 4, hold NONE.
  local function rank_of(keys, count, i, key)
    return k.loop(zero(k.i32), count, 4, zero(k.i32), function(first, rank)
      for j, other in ipairs(k.shared_load_vector(k.i32, 4, keys + first * 4)) do
        local is_before = k.lt(other, key) | k.eq(other, key) & k.lt(first + (j - 1), i)
        rank = rank + k.zext(k.i32, is_before)
      end
      return rank
    end)
  end

  -- The bits of the row's columns. The first target of each word has it.
  local function store_blocks(p, a, column_at)
    local words = k.offset(p.target_block, i64(a) * i64(p.block_words) * 4)
    k.loop(k.tid(), p.block_words, SORT_THREADS, nil, function(word) k.store(words, word, zero(k.i32)) end)
    k.barrier()
    local function word_at(i) return k.udiv(column_at(i), OF_WORD) end
    k.loop(k.tid(), p.targets, SORT_THREADS, nil, function(i)
      local word = word_at(i)
      local is_first = k.eq(i, 0) | k.ne(word_at(k.max(i - 1, 0)), word)
      k.when(is_first & k.ne(column_at(i), NONE), function()
        local start = {i = i, bits = zero(k.i32), more = k.const(k.i32, 1)}
        local done = k.while_(start, function(now) return k.ne(now.more, 0) end, function(now)
          local bit = k.udiv(k.urem(column_at(now.i), OF_WORD), OF_BIT)
          local following = k.min(now.i + 1, p.targets - 1)
          local more = k.lt(now.i + 1, p.targets) & k.eq(word_at(following), word)
          return {i = following, bits = now.bits | (k.const(k.i32, 1) << bit), more = k.zext(k.i32, more)}
        end)
        k.store(words, word, done.bits)
      end)
    end)
  end

  -- ∂t/∂x in nats, but for what a softcap bends.
  local function factor_of(p, a)
    local factor = f64(k.load(k.f32, p.scale, a)) * LN2
    return k.branch(k.ne(p.capped, 0), function() return factor * f64(p.cap_in) end, function() return factor end)
  end

  local function targets_sort(p)
    local a, count = k.ctaid(), k.load(k.i32, p.count, 0)
    k.when(k.eq(a, 0) & k.eq(k.tid(), 0), function() store_if(p.target_total, 0, count * p.targets) end)
    k.exit_if(k.ge(a, count))
    local row, keys = k.load(k.i32, p.index, a), k.shared()
    local from, to = i64(row) * i64(p.targets), i64(a) * i64(p.targets)
    local padded = (p.targets + 3) & -4
    k.loop(k.tid(), padded, SORT_THREADS, nil, function(i)
      local exists = k.lt(i, p.targets)
      local id = i64(k.load(id_type, p.target, from + i64(k.select(exists, i, 0))))
      local here = id - p.vocab_offset
      local is_mine = exists & k.ne(id, p.ignore_index) & k.ge(here, 0) & k.lt(here, p.vocab_valid)
      k.shared_store(keys + i * 4, k.select(is_mine, i32(here), NONE))
    end)
    k.barrier()
    local function sorted(i) return keys + (MOST * 4 + i * 4) end
    k.loop(k.tid(), p.targets, SORT_THREADS, nil, function(i)
      local key = k.shared_load(k.i32, keys + i * 4)
      local rank = rank_of(keys, padded, i, key)
      k.store(p.list_column, to + i64(rank), key)
      k.store(p.target_place, to + i64(rank), k.convert(k.i16, i))
      store_if(p.list_row, to + i64(i), a)
      k.shared_store(sorted(rank), key)
    end)
    k.barrier()
    local function column_at(i) return k.shared_load(k.i32, sorted(i)) end
    k.when(~k.is_null(p.target_block), function() store_blocks(p, a, column_at) end)
    k.when(~k.is_null(p.list_length), function()
      k.loop(k.tid(), p.targets, SORT_THREADS, nil, function(i)
        local is_last = k.eq(i, p.targets - 1) | k.eq(column_at(k.min(i + 1, p.targets - 1)), NONE)
        k.when(k.ne(column_at(i), NONE) & is_last, function() k.store(p.list_length, a, i + 1) end)
      end)
    end)
    k.when(k.eq(k.tid(), 0), function()
      k.when(k.eq(column_at(0), NONE), function() store_if(p.list_length, a, zero(k.i32)) end)
      store_if(p.list_target, a, k.const(k.i32, -1))
      store_if(p.target_offsets, row, to)
      k.when(~k.is_null(p.bound), function()
        local more = k.load(k.f32, p.target_weight, row) * k.abs(f32(factor_of(p, a)))
        k.store(p.bound, a, k.load(k.f32, p.bound, a) + more)
      end)
    end)
  end

  --------------------------------------------------------------------------------------------- targets_finish
  local function fill_row(p, row, class)
    local value = k.select(k.eq(class, BAD), k.const(k.f32, nan), 0.0)
    k.loop(k.lane(), p.targets, 32, nil, function(i) store_if(p.logprob, row * i64(p.targets) + i64(i), value) end)
  end

  local function finish_row(p, a)
    local row = i64(k.load(k.i32, p.index, a))
    local function sum_of(shard)
      local v = k.load_vector(k.f32, 4, p.partial, shard * p.n + row)
      return {m = v[1], s = v[2], q = v[3]}
    end
    local one = k.const(k.i64, 1)
    local sum = k.loop(one, p.shard_count, 1, sum_of(zero(k.i64)), function(shard, sum)
      return S.merge(sum, sum_of(shard))
    end)
    local log_s, alive = F.log2(f64(sum.s)), S.is_alive(sum)
    local function guard(v) return k.select(alive, f32(v), nan) end
    local scale = k.load(k.f32, p.scale, a)
    local function logprob_of(i)
      local function score_of(shard) return k.load(k.f32, p.score, (shard * p.n + row) * i64(p.targets) + i64(i)) end
      local x = k.loop(one, p.shard_count, 1, score_of(zero(k.i64)), function(shard, x)
        return k.max(x, score_of(shard))
      end)
      return guard(O.at_most_0(O.logprob(O.exponent(p, function() return scale end, x, sum.m), log_s)))
    end
    local best = k.loop(k.lane(), p.targets, 32, k.const(k.f32, -infinity), function(i, best)
      local at = row * i64(p.targets) + i64(i)
      local is_ignored = k.eq(i64(k.load(id_type, p.target, at)), p.ignore_index)
      local logprob = logprob_of(i)
      store_if(p.logprob, at, k.select(is_ignored, 0.0, logprob))
      return k.select(is_ignored, best, k.max(best, logprob))
    end)
    best = over_lanes(best, k.max)
    k.when(k.eq(k.lane(), 0), function()
      k.when(S.is_beyond(sum), function() k.atomic_add(p.error_word, 0, k.const(k.i32, 1)) end)
      local entropy = guard(O.at_least_0(O.entropy(sum, log_s)))
      store_if(p.entropy, row, entropy)
      k.when(~k.is_null(p.stats), function()
        k.store_vector(p.stats, row, {sum.m, guard(log_s), guard(best), entropy})
      end)
    end)
  end

  local function targets_finish(p)
    local a = p.row_begin + k.ctaid() * WARPS + k.warp()
    local row = i64(a)
    k.exit_if(k.ge(a, p.row_end))
    local class = k.convert(k.i32, k.load(k.i8, p.row_class, row))
    k.when(k.ne(class, ACTIVE), function() fill_row(p, row, class) end)
    k.when(k.lt(a, k.load(k.i32, p.count, 0)), function() finish_row(p, a) end)
  end

  --------------------------------------------------------------------------------------------- targets_strike
  local function targets_strike(p)
    local a = p.row_begin + k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local columns = k.offset(p.list_column, i64(a) * i64(p.targets) * 4)
    local to = i64(a - p.row_begin) * p.kept_stride
    k.loop(k.lane(), k.load(k.i32, p.list_length, a), 32, nil, function(i)
      k.store(p.kept, to + i64(k.load(k.i32, columns, i)), k.convert(element, k.const(k.f32, 0.0)))
    end)
  end

  ---------------------------------------------------------------------------------------------- targets_patch
  -- Σ g of the targets of one column, from place i of the list on.
  local function gradient_of(p, row, i, column)
    local start = {i = i, sum = k.const(k.f64, 0.0), more = k.const(k.i32, 1)}
    return k.while_(start, function(now) return k.ne(now.more, 0) end, function(now)
      local place = i32(k.load(k.i16, row.places, now.i))
      local sum = now.sum + f64(k.load(k.f32, row.gradients, place))
      local following = k.min(now.i + 1, row.length - 1)
      local more = k.lt(now.i + 1, row.length) & k.eq(k.load(k.i32, row.columns, following), column)
      return {i = following, sum = sum, more = k.zext(k.i32, more)}
    end).sum
  end

  -- The score of place i of the list, or with softcap its tanh.
  local function score_of(p, row, i)
    return k.branch(k.is_null(p.score), function() return k.load(k.f32, row.scores, i) end, function()
      local x = k.load(k.f32, row.held, i32(k.load(k.i16, row.places, i)))
      return k.branch(k.ne(p.capped, 0), function() return S.cap(x, p.cap_in) end, function() return x end)
    end)
  end

  -- The element, in double but for the slope, and what the targets add to it.
  local function element_of(p, row, i, own)
    local y = score_of(p, row, i)
    local u = k.fma(f64(row.scale), f64(y), -f64(row.stats[1]))
    local logprob = O.at_most_0(O.logprob(u, f64(row.stats[2])))
    logprob = k.select(k.gt(logprob, -0.5), f64(row.stats[3]), logprob)
    local probability = F.exp(logprob)
    local is_exact = k.eq(probability, 0.0) | k.eq(row.e, 0.0)
    local pull = k.select(is_exact, k.const(k.f64, 0.0), row.e * probability * (logprob + f64(row.stats[4])))
    local all = (own - row.gradient) - row.gradient * F.expm1(logprob) - pull
    local factor = k.branch(k.ne(p.capped, 0), function() return row.factor * f64((1.0 - y) * (1.0 + y)) end,
      function() return row.factor end)
    return f32(all * factor), f32(own * factor)
  end

  local function targets_patch(p)
    local a = p.row_begin + k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local at, first = k.load(k.i32, p.index, a), i64(a) * i64(p.targets)
    local row = {
      length = k.load(k.i32, p.list_length, a), columns = k.offset(p.list_column, first * 4),
      places = k.offset(p.target_place, first * 2), scores = k.offset(p.list_score, first * 4),
      gradients = k.offset(p.grad_logprob, i64(at) * i64(p.targets) * 4), stats = k.load_vector(k.f32, 4, p.stats, at),
      gradient = k.load(k.f64, p.target_exact, at), e = f64(load_or_zero(p.grad_entropy, at)),
      scale = k.load(k.f32, p.scale, a), factor = factor_of(p, a),
      held = k.offset(p.score, i64(at) * i64(p.targets) * 4),
    }
    -- What products multiply the row by; 0 of one without a gradient.
    local times = k.branch(k.is_null(p.factor), function() return k.const(k.f32, 1.0) end,
      function() return k.load(k.f32, p.factor, a) end)

    local storage = k.branch(k.is_null(p.scale_pair), function() return k.const(k.f32, 1.0) end,
      function() return k.load(k.f32, p.scale_pair, 0) end)
    local is_struck = k.branch(k.is_null(p.redo), function() return k.const(k.i1, false) end, function()
      return k.eq(k.load(k.i32, p.redo, (a - p.row_begin) // k.abi.KEPT_BLOCK_ROWS), 0)
    end)
    local to = i64(a - p.row_begin) * p.dz_stride
    k.loop(k.lane(), row.length, 32, nil, function(i)
      local column = k.load(k.i32, row.columns, i)
      local is_repeated = k.gt(i, 0) & k.eq(k.load(k.i32, row.columns, k.max(i - 1, 0)), column)
      k.when(k.ge(column, p.column_begin) & k.lt(column, p.column_end), function()
        k.branch(is_repeated, function() store_if(p.list_dz, first + i64(i), k.const(k.f32, 0.0)) end, function()
          local whole, own = element_of(p, row, i, gradient_of(p, row, i, column))
          local stored = k.select(k.eq(times, 0.0), k.const(k.f32, 0.0), whole * storage / times)
          k.store(p.dz, to + i64(column - p.column_begin), k.convert(element, stored))
          store_if(p.list_dz, first + i64(i), k.select(k.eq(times, 0.0), 0.0, k.select(is_struck, whole, own)))
        end)
      end)
    end)
  end

  ----------------------------------------------------------------------------------------------- targets_bias
  local function targets_bias(p)
    local column = k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(column, p.column_end - p.column_begin))
    local v = p.column_begin + column
    local begin, last = k.load(k.i32, p.list_start, v), k.load(k.i32, p.list_start, v + 1)
    k.exit_if(k.ge(begin, last))
    local sum = k.loop(begin + k.lane(), last, 32, k.const(k.f32, 0.0), function(i, sum)
      local e = k.load(k.i32, p.list_order, i)
      local a = k.load(k.i32, p.list_row, e)
      local is_in = k.ge(a, p.row_begin) & k.lt(a, p.row_end)
      return k.branch(is_in, function() return sum + k.load(k.f32, p.list_dz, e) end, function() return sum end)
    end)
    sum = over_lanes(sum, add)
    k.when(k.eq(k.lane(), 0), function() k.store(p.bias_part, column, k.load(k.f32, p.bias_part, column) + sum) end)
  end

  local function entry(name, threads, shared_bytes, body)
    k.kernel {entry = name, threads = threads, shared_bytes = shared_bytes, body = body}
  end
  entry("targets_rows", THREADS, 0, targets_rows)
  entry("targets_sort", SORT_THREADS, MOST * 8, targets_sort)
  entry("targets_finish", THREADS, 0, targets_finish)
  entry("targets_strike", THREADS, 0, targets_strike)
  entry("targets_patch", THREADS, 0, targets_patch)
  entry("targets_bias", THREADS, 0, targets_bias)
end
