-- expect: portable/forward.lua:5: a kernel value is always true as condition of a loop; use k.loop or k.while_
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local n = k.tid()
    repeat k.barrier() until n
  end}
end
