-- expect: portable/forward.lua:4: a kernel value cannot be part of a string
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.tid() .. "!"
  end}
end
