-- expect: portable/forward.lua:3: the sandbox has no global 'os'
return function(k, spec)
  local t = os.time()
end
