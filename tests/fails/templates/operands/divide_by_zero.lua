-- expect: portable/forward.lua:4: // by zero
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.tid() // 0
  end}
end
