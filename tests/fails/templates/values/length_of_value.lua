-- expect: portable/forward.lua:4: a kernel value has no length
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local n = #k.tid()
  end}
end
