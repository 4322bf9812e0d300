-- expect: portable/forward.lua:3: string has no function 'match'
return function(k, spec)
  local s = ("a"):rep(40):match(("a-"):rep(40) .. "b")
end
