-- expect: portable/forward.lua:3: a table with a table as key has no fixed order
return function(k, spec)
  for key in pairs({[{}] = 1}) do end
end
