-- expect: portable/forward.lua:4: state: expected f32, got nil
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, 4, 1, p.cap_in, function(i, s) end)
  end}
end
