-- expect: portable/forward.lua:4: k.load: type: expected a type such as k.f32, got ptr
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.load(p.zy, 0)
  end}
end
