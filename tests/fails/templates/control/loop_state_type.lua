-- expect: portable/forward.lua:5: state.m[3]: expected f32, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local s = {m = {k.tid(), k.tid(), p.cap_in}}
    k.loop(0, p.depth, 1, s, function(i, state)
      state.m[3] = i
      return state
    end)
  end}
end
