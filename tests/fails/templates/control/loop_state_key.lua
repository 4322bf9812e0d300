-- expect: portable/forward.lua:4: a table with a table as key has no fixed order
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.loop(0, 4, 1, {[{}] = p.cap_in}, function(i, s) return s end)
  end}
end
