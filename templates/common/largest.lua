-- largest.lua: the gradient of a row's largest score where an entropy has one, from saved exponentials.
--
-- kept is rounded to bf16, so that log2 of it is off by up to 2^-8·log2(e). That is nothing beside the logarithm of a small
-- probability; but of a column of p = 1 - ε the gradient is of the size of ε, and the logarithm's error drowns it. Its
-- exact score is known but for one bit: the maximum m of the row is y·row_scale, rounded, and at most two numbers y, which
-- follow each other, have that product: one above m, one below. Part keep stores which as the sign of what it keeps.
-- The products of the plain form read what is kept, which has no sign then.
--
--   r = fma(y, row_scale, -m) = t - m          what rounding took from m
--   dz = 2^r·(A + B·r)                         as in kept.lua, without the cancellation
--
-- A column that rounding of kept does not tell from the largest is taken for it: its logarithm is then off by at most
-- twice as much as by rounding.

local SIGN = -0x80000000
local LEAST = 1 - 0x1.02p-8                         -- of the largest exponential: what bf16's rounding may make of it

return function(k)
  local L = {}

  local function bits(x) return k.bitcast(k.i32, x) end
  local function float(x) return k.bitcast(k.f32, x) end

  -- 2^u, with the sign of u where form, p.slope, is that of the expanded form.
  function L.mark(form)
    local mask = k.select(k.eq(form, 0.0), k.const(k.i32, SIGN), 0)
    return function(exponential, u) return float(bits(exponential) | bits(u) & mask) end
  end

  -- kept without its sign; and whether its score is below m.
  function L.size(kept) return k.abs(kept) end
  function L.is_below(kept) return k.lt(bits(kept), 0) end

  -- Is an exponential that of the row's largest score; per_largest: 1 by the latter
  function L.is_largest(size, per_largest) return k.ge(size * per_largest, LEAST) end

  -- dz of the largest score, of a row's {m, A, B} and its row_scale: a function of is_below.
  function L.gradient(m, A, B, row_scale)
    local scale = k.abs(row_scale)
    local near = m / scale                          -- at most one number from y
    local above, below = k.const(k.f32, 0.0), k.const(k.f32, 0.0)
    for step = -1, 1 do
      local y = float(bits(near) + step)
      local r = k.select(k.eq(y * scale, m), k.fma(y, scale, -m), 0.0)
      above, below = k.max(above, r), k.min(below, r)
    end
    local function dz(r) return k.exp2(r) * k.fma(B, r, A) end
    local dz_above, dz_below = dz(above), dz(below)
    return function(is_below) return k.select(is_below, dz_below, dz_above) end
  end

  return L
end
