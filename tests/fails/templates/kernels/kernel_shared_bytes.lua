-- expect: portable/forward.lua:3: k.kernel: shared_bytes: 300000 is not in [0, 232448]
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, shared_bytes = 300000, body = function(p) end}
end
