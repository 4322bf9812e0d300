-- expect: portable/forward.lua:4: k.pack: type: expected bf16 or f16, got f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.pack(k.f32, p.cap_in, p.cap_in)
  end}
end
