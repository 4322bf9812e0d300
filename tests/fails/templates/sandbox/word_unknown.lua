-- expect: portable/forward.lua:4: k has no word 'exp'
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.exp(p.cap_in)
  end}
end
