-- outputs.lua: what a row ends with, in double from the fp32 sums {m, s, q} of its scores (score.lua).
--
--   logprob = ln2·(u_y - log2 s)      u_y = scale·y_y - m, formed without rounding
--   H       = ln2·(log2 s - q/s)
--
-- dz.lua and `record` of rows.lua have the derivatives of these formulas, and change with them.

local LN2 = 0.6931471805599453

return function(k)
  local S = k.import "score" (k)
  local O = {}
  local f64 = function(v) return k.convert(k.f64, v) end

  -- u of a raw score x, of an active row with that row_scale.
  function O.exponent(p, row_scale, x, m)
    local shaped = k.branch(k.ne(p.capped, 0), function() return S.cap(x, p.cap_in) end, function() return x end)
    return k.fma(f64(row_scale()), f64(shaped), -f64(m))
  end

  function O.logprob(u, log_s) return (u - log_s) * LN2 end

  function O.entropy(sum, log_s) return (log_s - f64(sum.q) / f64(sum.s)) * LN2 end

  -- Roundings may bring a logprob above 0, an entropy below.
  function O.at_most_0(logprob) return k.select(k.gt(logprob, 0.0), 0.0, logprob) end
  function O.at_least_0(entropy) return k.select(k.lt(entropy, 0.0), 0.0, entropy) end

  return O
end
