-- expect: portable/forward.lua:4: k.shared_store: value: expected a kernel value, got a Lua float
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.shared_store(k.shared(), 1.0)
  end}
end
