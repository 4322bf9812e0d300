-- expect: portable/forward.lua:4: k.eq: operands differ in type, i32 and i64; use k.convert
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local c = k.eq(p.depth, p.capacity)
  end}
end
