-- expect: portable/forward.lua:3: k.import: expected a name, got a Lua integer
return function(k, spec)
  k.import(7)
end
