-- Words of the warp and of the tensor core.
return function(k, spec)
  k.kernel {entry = "forward", threads = 32, shared_bytes = 2048, body = function(p)
    local shared = k.shared()
    k.copy_async16(shared + k.lane() * 16, p.hidden, 16)
    k.copy_async16(shared + k.lane() * 16 + 512, p.weight, p.depth)
    k.copy_commit()
    k.copy_wait(0)
    k.barrier()
    local a, b = k.ldmatrix(shared), k.ldmatrix_trans(shared + 512)
    local c = k.mma("bf16", a, {b[1], b[2]}, {0.0, 0.0, p.cap_in, 1.0})
    local total = k.max(c[1], k.shuffle_xor(c[1], 1)) + k.shuffle_up(c[2], 1) * k.shuffle_idx(c[3], 0)
    local hits = k.popcount(k.ballot(k.lt(total, 0.0)))
    k.when(k.any(k.is_nan(total)), function() k.store(p.count, 0, hits) end)
    k.store(p.part, k.lane(), k.pack(k.bf16, total, k.exp2(c[4])))
  end}
end
