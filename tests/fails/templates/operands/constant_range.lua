-- expect: portable/forward.lua:4: k.const: 300 does not fit i8
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.const(k.i8, 300)
  end}
end
