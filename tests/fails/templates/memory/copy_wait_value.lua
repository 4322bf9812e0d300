-- expect: portable/forward.lua:4: k.copy_wait: pending groups: expected a Lua integer, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.copy_wait(k.tid())
  end}
end
