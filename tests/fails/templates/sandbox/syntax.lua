-- expect: portable/forward.lua:3: unexpected symbol near '='
return function(k, spec)
  local x = = 1
end
