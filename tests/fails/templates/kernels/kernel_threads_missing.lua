-- expect: portable/forward.lua:3: k.kernel: threads: expected a Lua integer, got nil
return function(k, spec)
  k.kernel {entry = "forward", body = function(p) end}
end
