-- expect: portable/forward.lua:7: a kernel value is always true as condition of a loop; use k.loop or k.while_
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local i = k.tid()
    while i do i = nil end
    local n = k.tid()
    while n do k.barrier() end
  end}
end
