-- expect: portable/forward.lua:4: state.name: expected a kernel value or a table of them, got string
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, 4, 1, {name = "x"}, function(i, s) return s end)
  end}
end
