-- expect: portable/forward.lua:3: dtype must be int4
return function(k, spec)
  assert(spec.dtype == "int4", "dtype must be int4")
end
