-- keep.lua (portable): stores what forward sums, for save, stream and direction modes: hooks of online.lua.
--
--   kept[a][v] = 2^(t - k_a) in bf16,  k_a = reference[a], chosen before by keep_reference (kept.lua)
--   kept ← kept·(1 - tanh²)            with softcap, where p.slope is 1: the gradient but for a factor a row
--   kept ← ±kept                       with an entropy, where p.slope is 0: the sign of t - m (largest.lua)
--
-- Shapes: as forward (online.lua); reference (n) by active row -> kept (row_end - row_begin, kept_stride), zeros in
-- columns from vocab_valid on and in rows from *count on. online.lua has 2^(t - m) at hand; 2^(m - k_a), one number a
-- row and block, moves it to the row's reference. Out of range it may be infinite: keep_finish has such rows done
-- again.

return function(k, spec, M)
  if spec.dtype ~= "bf16" then
    error("dtype: " .. spec.dtype .. " lacks the range of exponentials; bf16 is accepted")
  end

  local S, L = k.import "score" (k), k.import "largest" (k)

  local function see(p, active, count, block_column, exponentials, m, valid, y)
    local function store(value) -- of the j-th column of this thread
      local row = k.convert(k.i64, active - p.row_begin) * p.kept_stride
      local at = row + k.convert(k.i64, block_column + M.column(0, 0))
      for ni = 0, M.ni - 1 do
        M.store_pair(k.bf16, p.kept, at + ni * 8, value(2 * ni + 1), value(2 * ni + 2), true)
      end
    end
    local function store_exponentials()
      local lift = k.exp2(m - k.load(k.f32, p.reference, active))
      store(function(j)
        local value = exponentials[j] * lift
        if spec.softcap then value = value * S.slope(y[j], p.slope) end
        return valid and k.select(valid(j), value, 0.0) or value
      end)
    end
    local function store_zeros()
      k.when(k.lt(active, p.row_end), function() store(function() return k.const(k.f32, 0.0) end) end)
    end
    local function store_row() k.branch(k.lt(active, count), store_exponentials, store_zeros) end
    if not valid then return store_row() end
    -- a multiple of the block; of a slice no more than its own columns
    local stored = spec.parts.top and k.lt(block_column, p.vocab_valid)
      or not spec.parts.top and k.lt(k.convert(k.i64, block_column), p.kept_stride)
    k.when(stored, store_row)
  end

  local K = {see = see, by_columns = true}
  if spec.entropy then K.mark = function(p) return L.mark(p.slope) end end
  return K
end
