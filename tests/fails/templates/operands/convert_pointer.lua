-- expect: portable/forward.lua:4: k.convert: no conversion from ptr to i64; use k.bitcast
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.convert(k.i64, p.hidden)
  end}
end
