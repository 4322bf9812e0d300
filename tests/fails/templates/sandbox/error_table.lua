-- expect: portable/forward.lua: the template raised a table instead of a message
return function(k, spec)
  error({code = 1})
end
