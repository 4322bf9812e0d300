-- expect: portable/forward.lua:4: << by 32, but i32 has 32 bits
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.tid() << 32
  end}
end
