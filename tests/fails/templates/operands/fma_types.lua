-- expect: portable/forward.lua:4: k.fma: expected f32, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.fma(p.cap_in, p.cap_in, p.depth)
  end}
end
