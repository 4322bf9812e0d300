-- expect: portable/forward.lua:4: k.shuffle_xor: expected i32 or f32, got i64
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.shuffle_xor(p.capacity, 1)
  end}
end
