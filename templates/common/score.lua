-- score.lua: from a raw matrix product to a score, the same in every kernel that needs one.
--
--   x = h·w + b                    raw score; b only with a bias
--   t = row_scale·x                score in log2 units: row_scale = a·log2(e)/T
--   t = row_scale·tanh(cap_in·x)   with softcap c: row_scale = c·log2(e)/T, cap_in = a/c
--
-- u = t - m is always formed by one fused multiply-add from x (or the tanh), never from a rounded t: with scores near
-- 1e4 a rounded t has lost three digits.

return function(k)
  local S = {}
  local TOGETHER = 8

  -- Beyond this a rounded maximum and the exact product part by more octaves than 2^u can hold: such a row is bad.
  S.limit = k.abi.SCORE_LIMIT

  -- The maximum of no columns, and a masked column's score: finite after scaling and counting, unlike -inf (0·-inf).
  S.lowest = -S.limit

  local function bits(x) return k.bitcast(k.i32, x) end

  -- tanh(v/2) for s = v² < 2: minimax, 2^-25.8 and roundings.
  local function tanh_near(v, s)
    local q = k.fma(s, -0x1.4d4b38p-19, 0x1.483dd2p-15)
    for _, c in ipairs {-0x1.b69432p-12, 0x1.10f95p-8, -0x1.5554ecp-5, 0.5} do q = k.fma(q, s, c) end
    return v * q
  end

  -- tanh(v/2) for all v, beyond s = 2 as 1 - 2/(e^|v| + 1).
  local function tanh_half(v, s)
    local far = k.fma(k.rcp_approx(k.exp2(k.abs(v) * 1.4426950408889634) + 1.0), -2.0, 1.0)
    far = k.bitcast(k.f32, bits(far) | (bits(v) & -0x80000000))
    return k.select(k.lt(s, 2.0), tanh_near(v, s), far)
  end

  -- tanh(cap_in·x), to the bit as below.
  function S.cap(x, cap_in)
    local v = x * (cap_in * 2.0)
    return tanh_half(v, v * v)
  end

  -- tanh(cap_in·x) of each x of a list, by all threads of a warp. Most scores are far below their cap: what they do not
  -- need is left out of every TOGETHER where no thread has one that does. With more at a time ptxas spills.
  function S.cap_all(list, cap_in)
    local out, twice = {}, cap_in * 2.0
    for first = 1, #list, TOGETHER do
      local v, s, seen = {}, {}, nil
      for i = 1, math.min(TOGETHER, #list - first + 1) do
        v[i] = list[first + i - 1] * twice
        s[i] = v[i] * v[i]
        seen = seen and seen | bits(s[i]) or bits(s[i])
      end
      local function each(f)
        local y = {}
        for i = 1, #v do y[i] = f(v[i], s[i]) end
        return y
      end
      -- 2, infinities and NaN have a bit that nothing below 2 has
      local far = k.any(~k.ult(seen, 0x40000000))
      local y = k.branch(far, function() return each(tanh_half) end, function() return each(tanh_near) end)
      table.move(y, 1, #y, first, out)
    end
    return out
  end

  -- 1 - tanh², of the tanh, where bend is 1; where it is 0, 1.
  function S.slope(tanh, bend) return k.fma(-(tanh * bend), tanh, 1.0) end

  -- Two running sums over disjoint columns -> one. m: maximum, s: Σ 2^(t-m), q: Σ (t-m)·2^(t-m), and of statistics
  -- r: Σ 4^(t-m), z: Σ y, t = row_scale·y.
  -- Symmetric in its arguments to the bit: lanes may merge in either order.
  function S.merge(a, b)
    local m = k.max(a.m, b.m)
    local da, db = a.m - m, b.m - m
    local ea, eb = k.exp2(da), k.exp2(db)
    local out = {m = m, s = a.s * ea + b.s * eb}
    if a.q then out.q = k.fma(da, a.s, a.q) * ea + k.fma(db, b.s, b.q) * eb end
    if a.r then out.r, out.z = a.r * (ea * ea) + b.r * (eb * eb), a.z + b.z end
    return out
  end

  -- f of each part of two sums.
  local function each(a, b, f)
    return {m = f(a.m, b.m), s = f(a.s, b.s), q = a.q and f(a.q, b.q), r = a.r and f(a.r, b.r), z = a.z and f(a.z, b.z)}
  end

  function S.select(condition, a, b)
    return each(a, b, function(x, y) return k.select(condition, x, y) end)
  end

  -- What the lane has whose number differs in these bits.
  function S.of_lane(sum, mask)
    return each(sum, sum, function(x) return k.shuffle_xor(x, mask) end)
  end

  -- One row's sum from those of four neighbouring lanes, which all get it.
  function S.merge_lanes(sum)
    for _, mask in ipairs {1, 2} do sum = S.merge(sum, S.of_lane(sum, mask)) end
    return sum
  end

  -- The largest y[i]·row_scale of the columns that are real.
  function S.top(y, row_scale, valid)
    local top
    for i = 1, #y do
      local t = y[i] * row_scale
      if valid then t = k.select(valid(i), t, S.lowest) end
      top = top and k.max(top, t) or t
    end
    return top
  end

  -- list[index + 1], by the bits of the index: a fifth of the code that a comparison for each would be.
  function S.pick(list, index)
    local bit = 1
    while #list > 1 do
      local odd, halves = k.ne(index & bit, 0), {}
      for i = 1, #list, 2 do
        halves[#halves + 1] = list[i + 1] and k.select(odd, list[i + 1], list[i]) or list[i]
      end
      list, bit = halves, bit * 2
    end
    return list[1]
  end

  -- Adds one block of scores to the running sum of one row; the maximum moves once a block.
  -- y: factors of row_scale; clamp: a bias may be -inf; valid(i): is column i real (nil: all are). A column that is
  -- masked or -inf adds exactly nothing, so a row with s = 0 at the end had no score above -inf.
  -- top: the largest y[i]·row_scale, where it is known; total: Σ y of the block, where the sum has it.
  -- Returns the new sum, and 2^(t - m) of each score, m its maximum; given mark, mark(2^(t - m), t - m) in its place.
  function S.accumulate(sum, y, row_scale, clamp, valid, top, mark, total)
    local m = k.max(sum.m, S.lowest)
    if top then m = k.max(m, top) end
    for i = 1, top and 0 or #y do
      local t = y[i] * row_scale
      if valid then t = k.select(valid(i), t, S.lowest) end
      m = k.max(m, t)
    end
    local d = sum.m - m
    local shrink = k.exp2(d)
    local s = sum.s * shrink
    local q = sum.q and k.fma(d, sum.s, sum.q) * shrink
    local r = sum.r and sum.r * (shrink * shrink)
    local exponentials = {}
    for i = 1, #y do
      local u = k.fma(y[i], row_scale, -m)
      if clamp then u = k.max_nan(u, S.lowest) end
      if valid then u = k.select(valid(i), u, S.lowest) end
      local e = k.exp2(u)
      s = s + e
      if q then q = k.fma(e, u, q) end
      if r then r = k.fma(e, e, r) end
      exponentials[i] = mark and mark(e, u) or e
    end
    return {m = m, s = s, q = q, r = r, z = r and sum.z + total}, exponentials
  end

  -- Σ y of the columns that are real.
  function S.total(y, valid)
    local total
    for i = 1, #y do
      local each = valid and k.select(valid(i), y[i], 0.0) or y[i]
      total = total and total + each or each
    end
    return total
  end

  -- Whether a row has no upstream gradient, by its {m, A, B, dz_y}: its dz is 0 then, whatever its scores.
  function S.is_silent(record)
    return k.eq((bits(record[2]) | bits(record[3]) | bits(record[4])) << 1, 0) -- whatever their signs
  end

  -- Is a row's sum one of scores that were told apart: its largest within the limit, one above -inf, none NaN.
  function S.is_alive(sum) return k.gt(sum.m, -S.limit) & k.le(sum.m, S.limit) & k.gt(sum.s, 0.0) end

  -- Is it beyond the limit: neither NaN nor of a row with an infinity.
  function S.is_beyond(sum)
    return k.gt(sum.m, S.limit) & k.lt(sum.m, 1.0 / 0.0) | k.le(sum.m, -S.limit) & k.eq(sum.s, sum.s)
  end

  -- A running sum over no columns.
  function S.empty(entropy, statistics)
    local zero = k.const(k.f32, 0.0)
    local of_statistics = statistics and zero or nil
    return {m = k.const(k.f32, S.lowest), s = zero, q = entropy and zero or nil, r = of_statistics, z = of_statistics}
  end

  return S
end
