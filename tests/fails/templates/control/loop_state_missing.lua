-- expect: portable/forward.lua:4: state.b: expected f32, got nil
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, 4, 1, {a = p.cap_in, b = p.cap_in}, function(i, s)
      return {a = s.a}
    end)
  end}
end
