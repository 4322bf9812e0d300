-- expect: portable/forward.lua:1: the file defines no kernel 'forward'
return function(k, spec)
  local n = 1
end
