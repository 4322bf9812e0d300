-- expect: portable/forward.lua:4: k.load: options: const and fresh exclude each other
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.load(k.f32, p.zy, 0, {const = true, fresh = true})
  end}
end
