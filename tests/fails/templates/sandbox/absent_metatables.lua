-- expect: portable/forward.lua:3: the sandbox has no global 'setmetatable'
return function(k, spec)
  setmetatable({}, {__index = string.rep})
end
