-- math64.lua: log2, exp and expm1 in double precision, for the handful of values that each row ends with.
--
-- Errors are below 1e-14 relative; the kernels that use them touch N numbers, so speed does not matter and the 2^-22
-- of the hardware approximations, which would show in a logprob, does.

return function(k)
  local F = {}
  local f64 = function(x) return k.const(k.f64, x) end

  local function horner(x, coefficients) -- highest first
    local sum = f64(coefficients[1])
    for i = 2, #coefficients do sum = k.fma(sum, x, f64(coefficients[i])) end
    return sum
  end

  -- log2 of a positive normal double: x = 2^e·m with m in [√½, √2); log m = 2·atanh((m-1)/(m+1)).
  function F.log2(x)
    local bits = k.bitcast(k.i64, x)
    local exponent = (k.lshr(bits, 52) & 2047) - 1023
    local mantissa = k.bitcast(k.f64, (bits & ((1 << 52) - 1)) | (1023 << 52))
    local high = k.gt(mantissa, 1.4142135623730951)
    mantissa = k.select(high, mantissa * 0.5, mantissa)
    exponent = k.select(high, exponent + 1, exponent)
    local y = (mantissa - 1.0) / (mantissa + 1.0)
    local series = {}
    for n = 19, 1, -2 do series[#series + 1] = 2.0 / n end
    local log = y * horner(y * y, series)
    return k.fma(log, f64(1.4426950408889634), k.convert(k.f64, exponent))
  end

  -- x = n·ln2 + r, |r| <= ln2/2 -> 2^n and expm1(r). The sum with 1.5·2^52 rounds to an integer in its low bits.
  local function reduce(x)
    x = k.select(k.lt(x, -708.0), f64(-708.0), k.select(k.gt(x, 708.0), f64(708.0), x))
    local shifted = k.fma(x, f64(1.4426950408889634), f64(0x1.8p52))
    local n = shifted - f64(0x1.8p52)
    local r = k.fma(n, f64(-1.90821492927058770002e-10), k.fma(n, f64(-6.93147180369123816490e-01), x))
    local power = k.bitcast(k.f64, (k.bitcast(k.i64, shifted) + 1023) << 52)
    local series, factorial = {}, 1.0
    for i = 1, 14 do factorial = factorial * i; table.insert(series, 1, 1.0 / factorial) end
    return power, r * horner(r, series)
  end

  -- exp, 0 below -708; NaN stays NaN.
  function F.exp(x)
    local power, small = reduce(x)
    local y = k.fma(power, small, power)
    return k.select(k.lt(x, -708.0), f64(0.0), y)
  end

  function F.expm1(x)
    local power, small = reduce(x)
    return k.fma(power, small, power - 1.0)
  end

  return F
end
