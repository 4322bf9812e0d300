-- expect: portable/forward.lua:4: +: operands differ in type, i32 and f32; use k.convert
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.tid() + p.cap_in
  end}
end
