-- expect: portable/forward.lua:3: tile 96 does not divide 128
return function(k, spec)
  error("tile 96 does not divide 128")
end
