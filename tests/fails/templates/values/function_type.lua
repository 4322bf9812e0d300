-- expect: portable/forward.lua:4: k.exp2 is not defined on i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.exp2(k.tid())
  end}
end
