-- expect: portable/forward.lua:3: the sandbox has no global 'next'
return function(k, spec)
  local key = next({1})
end
