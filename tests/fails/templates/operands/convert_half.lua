-- expect: portable/forward.lua:4: k.convert: no conversion from bf16 to f64; go through f32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.convert(k.f64, k.load(k.bf16, p.hidden, 0))
  end}
end
