-- expect: portable/forward.lua:6: state nests deeper than 16 tables
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local s = {p.cap_in}
    for _ = 1, 20 do s = {s} end
    k.loop(0, 4, 1, s, function(i, t) return t end)
  end}
end
