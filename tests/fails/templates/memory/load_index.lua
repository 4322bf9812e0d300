-- expect: portable/forward.lua:4: k.load: index: expected i32 or i64, got f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.load(k.f32, p.zy, p.cap_in)
  end}
end
