-- expect: portable/forward.lua:5: * is not defined on bf16; use k.convert to f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local h = k.load(k.bf16, p.hidden, 0)
    local x = h * h
  end}
end
