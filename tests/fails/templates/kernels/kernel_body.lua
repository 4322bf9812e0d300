-- expect: portable/forward.lua:3: k.kernel: body: expected a function, got nil
return function(k, spec)
  k.kernel {entry = "forward", threads = 128}
end
