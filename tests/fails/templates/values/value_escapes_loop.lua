-- expect: portable/forward.lua:6: this i32 was made inside a loop, arm or kernel that has ended; return it as state
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local kept
    k.loop(0, p.depth, 1, nil, function(i) kept = i * 2 end)
    k.store(p.zy, 0, kept)
  end}
end
