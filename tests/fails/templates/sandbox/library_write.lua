-- expect: portable/forward.lua:3: math is read-only: 'floor' cannot be set
return function(k, spec)
  math.floor = nil
end
