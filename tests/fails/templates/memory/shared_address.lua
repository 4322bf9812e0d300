-- expect: portable/forward.lua:4: k.shared_load: address: expected i32, got ptr
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.shared_load(k.f32, p.zy)
  end}
end
