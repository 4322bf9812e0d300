-- Every kind of access: scalars and vectors in global memory, shared memory by address, an atomic.
return function(k, spec)
  k.kernel {entry = "forward", threads = 32, shared_bytes = 256, body = function(p)
    local i = k.tid()
    local v = k.load_vector(k.bf16, 4, p.hidden, i)
    local sum = k.convert(k.f32, v[1]) + k.convert(k.f32, v[4])
    k.shared_store(k.shared() + i * 4, sum)
    k.barrier()
    local other = k.shared_load(k.f32, k.shared() + (31 - i) * 4)
    k.store(k.offset(p.part, p.capacity), i, k.convert(k.bf16, other))
    k.store_vector(p.zy, i, {sum, other})
    k.atomic_add(p.count, 0, k.load(k.i32, p.index, i))
  end}
end
