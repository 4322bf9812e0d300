-- expect: portable/forward.lua:4: k.kernel: a kernel cannot be defined inside another
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.kernel {entry = "forward", threads = 128, body = function(q) end}
  end}
end
