-- expect: portable/forward.lua:3: spec has no field 'hiden'
return function(k, spec)
  local n = spec.hiden
end
