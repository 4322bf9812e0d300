-- expect: portable/forward.lua:3: k is read-only: 'load' cannot be set
return function(k, spec)
  k.load = nil
end
