-- expect: portable/forward.lua:3: the sandbox has no global 'pcall'
return function(k, spec)
  pcall(error)
end
