-- expect: portable/forward.lua: the template needs more memory than a template may have
return function(k, spec)
  local s = "x"
  while true do s = s .. s end
end
