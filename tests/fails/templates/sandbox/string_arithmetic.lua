-- expect: portable/forward.lua:3: setmetatable: this table is protected
return function(k, spec)
  setmetatable(k, {})
end
