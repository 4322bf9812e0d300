-- expect: portable/forward.lua:4: kernel 'forward' has no parameter 'hiden'
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = p.hiden
  end}
end
