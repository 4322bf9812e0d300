-- expect: portable/forward.lua:3: there is no template nowhere.lua in portable/ or common/
return function(k, spec)
  k.import "nowhere"
end
