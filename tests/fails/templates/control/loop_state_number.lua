-- expect: portable/forward.lua:4: state.sum[1]: a Lua float has no kernel type; use k.const
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, 4, 1, {sum = {0.0}}, function(i, s) return s end)
  end}
end
