-- expect: portable/forward.lua:4: k.bitcast: i32 and f64 differ in size or kind
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.bitcast(k.f64, k.tid())
  end}
end
