-- expect: portable/forward.lua:3: k.kernel: entry: 'dz' is no kernel of module forward
return function(k, spec)
  k.kernel {entry = "dz", threads = 128, body = function(p) end}
end
