-- expect: forward.lua:3: there is no template nowhere.lua
return function(k, spec)
  k.import "nowhere"
end
