-- expect: portable/forward.lua:4: - is not defined on i1
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = -k.lt(k.tid(), 3)
  end}
end
