-- expect: portable/forward.lua:4: k.store_vector: value[2]: expected f32, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.store_vector(p.zy, 0, {p.cap_in, k.tid()})
  end}
end
