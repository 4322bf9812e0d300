-- expect: portable/forward.lua:4: a value (i32) has no field 'x', only 'type'
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local n = k.tid().x
  end}
end
