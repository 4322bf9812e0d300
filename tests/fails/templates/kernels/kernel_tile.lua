-- expect: portable/forward.lua:3: k.kernel: tile: unknown field 'width'; accepted are rows, columns, depth, stages, unit_columns, raster, cluster
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, tile = {width = 8}, body = function(p) end}
end
