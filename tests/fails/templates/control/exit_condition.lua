-- expect: portable/forward.lua:4: k.exit_if: condition: expected i1, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.exit_if(k.tid())
  end}
end
