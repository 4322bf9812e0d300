-- expect: portable/forward.lua:4: k.offset: bytes: expected i32, i64 or a Lua integer, got a Lua float
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local q = k.offset(p.zy, 1.5)
  end}
end
