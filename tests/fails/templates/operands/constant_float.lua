-- expect: portable/forward.lua:4: k.const: a Lua float cannot become i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.const(k.i32, 2.0)
  end}
end
