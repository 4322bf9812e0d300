-- expect: portable/forward.lua:4: k.convert: value: expected a kernel value, got a Lua integer
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.convert(k.f32, 1)
  end}
end
