-- expect: portable/forward.lua:6: this f32 was made inside a loop, arm or kernel that has ended; return it as state
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local kept
    k.when(k.lt(k.tid(), 3), function() kept = k.load(k.f32, p.zy, 0) end)
    local x = kept + 1.0
  end}
end
