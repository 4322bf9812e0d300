-- expect: portable/forward.lua:4: k.load_vector: 3 f32 are 12 bytes; a vector has 1, 2, 4, 8 or 16
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local v = k.load_vector(k.f32, 3, p.zy, 0)
  end}
end
