-- expect: portable/forward.lua:3: k.kernel: threads: 100 is no multiple of 32
return function(k, spec)
  k.kernel {entry = "forward", threads = 100, body = function(p) end}
end
