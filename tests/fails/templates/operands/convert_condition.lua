-- expect: portable/forward.lua:4: k.convert: no conversion from i1 to i32; use k.zext, k.select or k.ne
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.convert(k.i32, k.lt(k.tid(), 3))
  end}
end
