-- expect: portable/forward.lua:3: attempt to perform arithmetic on a string value (constant '10')
return function(k, spec)
  local n = "10" + 1
end
