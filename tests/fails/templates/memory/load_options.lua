-- expect: portable/forward.lua:4: k.load: options: unknown field 'constant'; accepted is const
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.load(k.f32, p.zy, 0, {constant = true})
  end}
end
