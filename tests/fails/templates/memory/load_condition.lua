-- expect: portable/forward.lua:4: k.load: i1 has no form in memory; use i8 or i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.load(k.i1, p.zy, 0)
  end}
end
