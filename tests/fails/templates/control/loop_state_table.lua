-- expect: portable/forward.lua:4: state.m: expected a table, got f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, 4, 1, {m = {p.cap_in}}, function(i, s) return {m = s.m[1]} end)
  end}
end
