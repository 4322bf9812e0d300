-- expect: portable/forward.lua:4: k.kernel: entry: 'forward' is defined twice
return function(k, spec)
  for _ = 1, 2 do
    k.kernel {entry = "forward", threads = 128, body = function(p) end}
  end
end
