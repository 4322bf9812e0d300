-- expect: portable/forward.lua:3: the sandbox has no global 'undefined_thing'
return function(k, spec)
  local x = undefined_thing
end
