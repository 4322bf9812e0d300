-- expect: portable/forward.lua:3: string has no function 'gsub'
return function(k, spec)
  local s = ("a"):rep(100):gsub(".-.-.-.-b", "")
end
