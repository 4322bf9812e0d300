-- expect: portable/forward.lua:4: + is not defined on ptr; use k.offset
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = p.hidden + 16
  end}
end
