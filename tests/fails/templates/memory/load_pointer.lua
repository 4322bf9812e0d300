-- expect: portable/forward.lua:4: k.load: pointer: expected ptr, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.load(k.f32, p.depth, 0)
  end}
end
