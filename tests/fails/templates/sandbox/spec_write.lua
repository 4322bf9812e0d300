-- expect: portable/forward.lua:3: spec is read-only: 'hidden' cannot be set
return function(k, spec)
  spec.hidden = 8
end
