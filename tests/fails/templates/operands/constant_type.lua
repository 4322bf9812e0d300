-- expect: portable/forward.lua:4: k.const: type: expected a type such as k.f32, got string
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.const("f32", 2.0)
  end}
end
