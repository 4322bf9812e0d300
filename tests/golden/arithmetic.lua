-- Operators keep the template's rounding: a product and a sum stay two instructions, k.fma is one.
return function(k, spec)
  k.kernel {entry = "forward", threads = 32, body = function(p)
    local x, i = p.cap_in, p.depth
    local y = x * x + x
    local z = k.fma(x, x, y) / k.max_nan(k.min(x, 2), k.abs(y))
    local wide = k.convert(k.f64, z) * 1e-3
    local n = ((i // 3 + i % 5) << 2 >> 1) ~ k.lshr(i, 3) & k.udiv(i, 7) | k.urem(i, 9)
    local far = k.convert(k.i64, n) - k.zext(k.i64, i)
    k.store(p.part, 0, k.convert(k.f32, wide) * k.rcp(k.sqrt(k.log2(z))))
    k.store(p.zy, far, k.bitcast(k.i32, z))
    k.store(p.count, 0, k.select(k.ult(i, 9) & ~k.ne(x, y), n, -1))
  end}
end
