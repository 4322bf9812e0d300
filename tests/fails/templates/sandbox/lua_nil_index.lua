-- expect: portable/forward.lua:4: attempt to index a nil value (local 't')
return function(k, spec)
  local t
  local x = t.field
end
