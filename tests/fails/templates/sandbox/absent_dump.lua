-- expect: portable/forward.lua:3: string has no function 'dump'
return function(k, spec)
  local s = string.dump(error)
end
