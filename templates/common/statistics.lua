-- statistics.lua: what a row's scores are as a whole, without a gradient: see runtime/kernel/abi.h for each entry.
--
--   lse = ln2·(m + log2 s)     mean = ln2·Σ t / V     log Σ p² = ln2·(log2 r - 2·log2 s), r = Σ 4^(t-m)
--   is the target the best: t_y = m, to the bit, as both are a product rounded once
--
--   statistics        from the parts of forward, in order, by one warp a row: the four, or of a shard its sums
--   statistics_merge  from those of all shards
--   statistics_list   the part of listed columns

local WARPS = 8
local LN2 = 0.6931471805599453

return function(k, spec)
  local S, F = k.import "score" (k), k.import "math64" (k)
  local nan = 0.0 / 0.0
  local f64 = function(v) return k.convert(k.f64, v) end
  local f32 = function(v) return k.convert(k.f32, v) end
  local i64 = function(v) return k.convert(k.i64, v) end
  local function number(v) return k.const(k.f32, v) end

  local function over_lanes(v)
    for _, mask in ipairs {16, 8, 4, 2, 1} do v = v + k.shuffle_xor(v, mask) end
    return v
  end

  local function tanh_if(p, x)
    return k.branch(k.ne(p.capped, 0), function() return S.cap(x, p.cap_in) end, function() return x end)
  end

  -- The number of this warp, and whether what is done once is its lane's to do.
  local function place() return k.ctaid() * WARPS + k.warp(), k.eq(k.lane(), 0) end

  -- What rows that are not computed get; out: the four, or a shard's sums.
  local function fill(out, row, class)
    local value = k.select(k.eq(class, k.abi.ROW_BAD), number(nan), 0.0)
    k.when(~k.is_null(out), function() k.store_vector(out, row, {value, value, value, number(0.0)}) end)
  end

  -- The four of a row from its stats, Σ t, Σ 4^(t-m) and how many columns there are, all f64.
  local function finish(out, row, stats, z, r, columns, best)
    local log_s = f64(stats[2])
    local lse, squares = (f64(stats[1]) + log_s) * LN2, (F.log2(r) - log_s * 2.0) * LN2
    local alive = ~k.is_nan(lse)
    local function guard(v) return k.select(alive, f32(v), nan) end
    local top = k.select(best & alive, number(1.0), 0.0)
    k.store_vector(out, row, {guard(lse), guard(z / columns * LN2), guard(squares), top})
  end

  -- Is a target of an active row as high as its maximum.
  local function is_best(p, a, row, m)
    local scale = k.load(k.f32, p.scale, a)
    local function reaches(x) return k.ge(tanh_if(p, x) * scale, m) end
    return k.branch(k.is_null(p.scores), function()
      return k.ge(k.load(k.i32, p.local_target, a), 0) & reaches(k.load(k.f32, p.zy, a))
    end, function()
      local found = k.loop(k.const(k.i32, 0), p.targets, 1, k.const(k.i32, 0), function(i, found)
        return found | k.zext(k.i32, reaches(k.load(k.f32, p.scores, i64(row) * i64(p.targets) + i64(i))))
      end)
      return k.ne(found, 0)
    end)
  end

  -- Σ over parts, each lane those of its number and on, then over lanes in a fixed order.
  local function fold(p, a, m)
    local at = i64(a - p.row_begin)
    local zero = k.const(k.f64, 0.0)
    local sums = k.loop(k.lane(), p.parts, 32, {z = zero, r = zero}, function(part, sums)
      local of_part = i64(part)
      local own = k.load(k.f32, p.part, of_part * 3 * p.capacity + at)
      local r = k.load(k.f32, p.statistics_part, of_part * 2 * p.capacity + at)
      local z = k.load(k.f32, p.statistics_part, of_part * 2 * p.capacity + p.capacity + at)
      local weight = F.exp(f64(own - m) * (2.0 * LN2))
      return {z = sums.z + f64(z), r = sums.r + k.select(k.eq(r, 0.0), zero, f64(r) * weight)}
    end)
    return f64(over_lanes(f32(sums.z))), f64(over_lanes(f32(sums.r)))
  end

  local function columns_of(p, a)
    return k.branch(k.is_null(p.list_length), function() return p.vocab_valid end,
      function() return k.load(k.i32, p.list_length, a) end)
  end

  local function statistics(p)
    local warp, is_first = place()
    local other = p.row_begin + warp
    k.when(is_first & k.lt(other, p.row_end), function()
      local class = k.convert(k.i32, k.load(k.i8, p.row_class, other))
      k.when(k.ne(class, k.abi.ROW_ACTIVE), function()
        fill(p.out, other, class)
        fill(p.partial_statistics, other, class)
      end)
    end)
    local a = p.row_begin + warp
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local row = k.load(k.i32, p.index, a)
    local scale, columns = f64(k.load(k.f32, p.scale, a)), columns_of(p, a)
    k.branch(k.is_null(p.partial_statistics), function()
      local stats = k.load_vector(k.f32, 4, p.stats, row)
      local z, r = fold(p, a, stats[1])
      k.when(is_first, function()
        finish(p.out, row, stats, z * scale, r, f64(columns), is_best(p, a, row, stats[1]))
      end)
    end, function()
      local m = k.load(k.f32, p.partial, i64(row) * 4)
      local z, r = fold(p, a, m)
      local best = k.select(is_best(p, a, row, m), number(1.0), 0.0)
      k.when(is_first, function()
        k.store_vector(p.partial_statistics, row, {f32(z * scale), f32(r), k.convert(k.f32, columns), best})
      end)
    end)
  end

  local function statistics_merge(p)
    local warp, is_first = place()
    local row = i64(warp)
    k.exit_if(~is_first | k.ge(row, p.n))
    local class = k.convert(k.i32, k.load(k.i8, p.row_class, row))
    k.branch(k.ne(class, k.abi.ROW_ACTIVE), function() fill(p.out, row, class) end, function()
      local stats = k.load_vector(k.f32, 4, p.stats, row)
      local zero = k.const(k.f64, 0.0)
      local total = k.loop(k.const(k.i64, 0), p.shard_count, 1, {z = zero, r = zero, columns = zero, best = zero},
        function(shard, total)
          local at = shard * p.n + row
          local own, m = k.load_vector(k.f32, 4, p.partial_statistics, at), k.load(k.f32, p.partial, at * 4)
          local weight = F.exp(f64(m - stats[1]) * (2.0 * LN2))
          return {
            z = total.z + f64(own[1]), r = total.r + k.select(k.eq(own[2], 0.0), zero, f64(own[2]) * weight),
            columns = total.columns + f64(own[3]),
            best = total.best + k.select(k.ge(m, stats[1]), f64(own[4]), zero),
          }
        end)
      finish(p.out, row, stats, total.z, total.r, total.columns, k.gt(total.best, 0.0))
    end)
  end

  local function statistics_list(p)
    local warp = place()
    local a = p.row_begin + warp
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local row, at = k.load(k.i32, p.index, a), i64(a - p.row_begin)
    local first, length = k.load(k.i64, p.offsets, row) * 4, k.load(k.i32, p.list_length, a)
    local scores, scale, m = k.offset(p.list_score, first), k.load(k.f32, p.scale, a), k.load(k.f32, p.part, at)
    local zero = number(0.0)
    local sums = k.loop(k.lane(), length, 32, {z = zero, r = zero}, function(i, sums)
      local y = k.load(k.f32, scores, i)
      local e = k.exp2(k.max_nan(k.fma(y, scale, -m), S.lowest))
      return {z = sums.z + y, r = k.fma(e, e, sums.r)}
    end)
    local z, r = over_lanes(sums.z), over_lanes(sums.r)
    k.when(k.eq(k.lane(), 0), function()
      k.store(p.statistics_part, at, r)
      k.store(p.statistics_part, at + p.capacity, z)
    end)
  end

  local function entry(name, body) k.kernel {entry = name, threads = WARPS * 32, shared_bytes = 0, body = body} end
  entry("statistics", statistics)
  entry("statistics_merge", statistics_merge)
  entry("statistics_list", statistics_list)
end
