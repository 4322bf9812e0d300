-- expect: portable/forward.lua:3: k.tid: only inside the body of a kernel
return function(k, spec)
  local id = k.tid()
end
