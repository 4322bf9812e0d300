-- expect: portable/forward.lua:4: ~ is not defined on f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = ~p.cap_in
  end}
end
