-- expect: portable/forward.lua:3: k.kernel: tile.rows: 0 is not in [1, 2147483647]
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, tile = {rows = 0}, body = function(p) end}
end
