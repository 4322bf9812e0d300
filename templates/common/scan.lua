-- scan.lua: sums of numbers, one a thread, over the lanes of a warp or the threads of a CTA.

return function(k)
  local C = {}

  -- Of the numbers (i32) of the warp's lanes up to this one.
  function C.inclusive(v)
    for _, delta in ipairs {1, 2, 4, 8, 16} do
      local other = k.shuffle_up(v, delta)
      v = k.select(k.ge(k.lane(), delta), v + other, v)
    end
    return v
  end

  -- Sum of the numbers (i32) of all threads before this one, and of all threads. shared: address of 32 words; warps: of
  -- the CTA
  function C.over_cta(number, shared, warps)
    local inside = C.inclusive(number)
    k.when(k.eq(k.lane(), 31), function() k.shared_store(shared + k.warp() * 4, inside) end)
    k.barrier()
    local total = k.shared_load(k.i32, shared + k.lane() * 4)
    if warps < 32 then total = k.select(k.lt(k.lane(), warps), total, 0) end
    local sum = C.inclusive(total)
    local before = k.shuffle_idx(sum - total, k.warp()) + (inside - number)
    local all = k.shuffle_idx(sum, 31)
    k.barrier()
    return before, all
  end

  return C
end
