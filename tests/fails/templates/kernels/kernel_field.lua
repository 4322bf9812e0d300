-- expect: portable/forward.lua:3: k.kernel: unknown field 'shared'; accepted are entry, threads, min_ctas, shared_bytes, tile, body
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, shared = 64, body = function(p) end}
end
