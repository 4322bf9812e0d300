-- expect: portable/forward.lua:4: +: a Lua float cannot become i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.tid() + 1.5
  end}
end
