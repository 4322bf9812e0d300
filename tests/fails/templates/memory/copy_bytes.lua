-- expect: portable/forward.lua:4: k.copy_async16: bytes: 17 is not in [0, 16]
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.copy_async16(k.shared(), p.hidden, 17)
  end}
end
