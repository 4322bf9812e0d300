-- expect: portable/forward.lua:3: the sandbox has no global 'load'
return function(k, spec)
  local f = load("return 1")
end
