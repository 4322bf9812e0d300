-- expect: portable/forward.lua:4: k.ult is not defined on f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local c = k.ult(p.cap_in, 1.0)
  end}
end
