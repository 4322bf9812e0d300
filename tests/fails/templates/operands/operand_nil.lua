-- expect: portable/forward.lua:4: +: expected i32, got nil
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.tid() + nil
  end}
end
