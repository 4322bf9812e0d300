-- expect: portable/forward.lua:4: k.zext: cannot widen i32 to i16
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.zext(k.i16, k.tid())
  end}
end
