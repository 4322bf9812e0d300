-- expect: portable/forward.lua:3: the sandbox is read-only: 'counter' cannot be set
return function(k, spec)
  counter = 1
end
