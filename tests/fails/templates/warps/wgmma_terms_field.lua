-- expect: portable/forward.lua:5: k.wgmma_terms: unknown field 'kind'
-- arch: sm_90a
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.wgmma_terms {columns = 8, kind = "bf16"}
  end}
end
