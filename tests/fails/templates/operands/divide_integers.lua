-- expect: portable/forward.lua:4: / is not defined on i32; use //
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.tid() / 2
  end}
end
