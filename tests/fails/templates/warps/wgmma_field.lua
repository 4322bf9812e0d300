-- expect: portable/forward.lua:5: k.wgmma: unknown field 'sort'; accepted are kind, columns, blocks, steps, a_step, b_step, a_block, a_major, b_major, wait, a, b, keep, into
-- arch: sm_90a
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    k.wgmma {kind = "bf16", columns = 8, sort = "bf16"}
  end}
end
