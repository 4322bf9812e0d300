-- expect: portable/forward.lua:4: k.const: a Lua integer cannot become ptr
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.const(k.ptr, 0)
  end}
end
