-- expect: portable/forward.lua:4: state.z: not part of the state before
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, 4, 1, {a = p.cap_in}, function(i, s)
      return {a = s.a, z = i}
    end)
  end}
end
