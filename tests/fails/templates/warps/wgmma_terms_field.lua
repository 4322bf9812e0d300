-- expect: portable/forward.lua:5: k.wgmma_terms: unknown field 'kind'; accepted are columns, a, b, b_at, b_major, pairs
-- arch: sm_90a
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.wgmma_terms {columns = 8, kind = "bf16"}
  end}
end
