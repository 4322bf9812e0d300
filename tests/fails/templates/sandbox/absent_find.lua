-- expect: portable/forward.lua:3: string has no function 'find'
return function(k, spec)
  local at = string.find(("a"):rep(30), ("a*"):rep(30) .. "b")
end
