-- expect: portable/forward.lua:5: k.wgmma: unknown field 'sort'
-- arch: sm_90a
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.wgmma {kind = "bf16", columns = 8, sort = "bf16"}
  end}
end
