-- staging.lua: results of an epilogue on their way to memory, in the operand dtype: a warp stages 16 rows x 128 bytes
-- at a time in shared memory, swizzled as the copy engine wants them, and the engine stores them while the warp goes
-- on.

local ROW = 128
local BYTES = k.abi.DZ_BOX_ROWS * ROW             -- of a warp

local function over(k, spec, H)
  local fp32 = spec.dtype == "fp32"
  local pair_type = ({bf16 = k.bf16, fp16 = k.f16})[spec.dtype]
  local B = {}

  -- A pair of neighbours, as store takes them.
  function B.pair(x, y) return fp32 and {x, y} or k.pack(pair_type, x, y) end

  -- packed: a pair of neighbours a word
  local function stage_packed(staged, packed)
    local row, right = H.lane & 15, k.lshr(H.lane, 4) -- where this lane's row of the four 8 x 8 matrices goes
    for i = 0, 3 do
      local chunk = (right + 2 * i) ~ (row & 7)
      k.store_matrix(staged + row * ROW + chunk * 16, packed[4 * i + 1], packed[4 * i + 2],
        packed[4 * i + 3], packed[4 * i + 4])
    end
  end

  local function stage_pairs(staged, pairs)
    local row, t = H.row(0, 0) & 7, H.lane & 3
    local at = staged + row * ROW + ((k.lshr(t, 1) ~ row) << 4) + (t & 1) * 8
    for i, pair in ipairs(pairs) do
      local j, h = (i - 1) // 2, (i - 1) % 2
      k.shared_store_vector((at ~ (j * 32)) + h * (8 * ROW), pair)
    end
  end

  -- Where this warp stages.
  function B.place() return H.staging + H.warp * BYTES end

  -- Stores one box of a map at place() -> x, y. pairs: of the neighbours in 128 bytes of this thread's two rows, the
  -- rows in turn
  function B.store(map, staged, place, pairs)
    k.when(k.eq(H.lane, 0), function() k.tensor_stores_read() end) -- what was staged before is on its way
    k.warp_sync()
    if fp32 then stage_pairs(staged, pairs) else stage_packed(staged, pairs) end
    k.proxy_fence()
    k.warp_sync()
    k.when(k.eq(H.lane, 0), function() k.tensor_store(map, staged, place()) end)
  end

  -- Behind the last store: before shared memory goes.
  function B.finish()
    k.when(k.eq(k.reread_tid() & 31, 0), function() k.tensor_stores_read() end)
  end

  return B
end

return {bytes = BYTES, over = over}
