-- expect: portable/forward.lua:3: k.import: '../secret' is no name of a template (a-z, 0-9, _ and / only)
return function(k, spec)
  k.import "../secret"
end
