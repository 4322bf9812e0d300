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

  -- A masked column's score: finite after scaling and counting, unlike -inf (0·-inf) or -2^127 (q + d·s overflows).
  S.lowest = -0x1p100

  -- tanh to about 1 ulp: an odd polynomial below 0.625 (Cephes tanhf), 1 - 2/(e^2x + 1) above.
  function S.tanh(x)
    local magnitude = k.abs(x)
    local power = k.exp2(magnitude * 2.8853900817779268)
    local large = 1.0 - 2.0 * k.rcp(power + 1.0)
    large = k.select(k.lt(x, 0.0), -large, large)
    local s = x * x
    local p = k.fma(s, -5.70498872745e-3, 2.06390887954e-2)
    p = k.fma(p, s, -5.37397155531e-2)
    p = k.fma(p, s, 1.33314422036e-1)
    p = k.fma(p, s, -3.33332819422e-1)
    return k.select(k.lt(magnitude, 0.625), k.fma(p * s, x, x), large)
  end

  -- The factor of row_scale in t.
  function S.shape(x, cap_in, capped)
    if not capped then return x end
    return S.tanh(x * cap_in)
  end

  -- Two running sums over disjoint columns -> one. m: maximum, s: Σ 2^(t-m), q: Σ (t-m)·2^(t-m).
  -- Symmetric in its arguments to the bit: lanes may merge in either order.
  function S.merge(a, b)
    local m = k.max(a.m, b.m)
    local da, db = a.m - m, b.m - m
    local ea, eb = k.exp2(da), k.exp2(db)
    local out = {m = m, s = a.s * ea + b.s * eb}
    if a.q then out.q = k.fma(da, a.s, a.q) * ea + k.fma(db, b.s, b.q) * eb end
    return out
  end

  -- f of each part of two sums.
  local function each(a, b, f)
    return {m = f(a.m, b.m), s = f(a.s, b.s), q = a.q and f(a.q, b.q)}
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

  -- Adds one block of scores to the running sum of one row; the maximum moves once a block.
  -- y: factors of row_scale; clamp: a bias may be -inf; valid(i): is column i real (nil: all are). A column that is
  -- masked or -inf adds exactly nothing, so a row with s = 0 at the end had no score above -inf.
  -- top: the largest y[i]·row_scale, where it is known. Returns the new sum, and 2^(t - m) of each score, m its maximum.
  function S.accumulate(sum, y, row_scale, clamp, valid, top)
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
    local exponentials = {}
    for i = 1, #y do
      local u = k.fma(y[i], row_scale, -m)
      if clamp then u = k.max_nan(u, S.lowest) end
      if valid then u = k.select(valid(i), u, S.lowest) end
      local e = k.exp2(u)
      s = s + e
      if q then q = k.fma(e, u, q) end
      exponentials[i] = e
    end
    return {m = m, s = s, q = q}, exponentials
  end

  -- A running sum over no columns.
  function S.empty(entropy)
    local zero = k.const(k.f32, 0.0)
    return {m = k.const(k.f32, S.lowest), s = zero, q = entropy and zero or nil}
  end

  return S
end
