-- direction.lua: the small kernels of direction mode, a frozen head: see runtime/kernel/abi.h for each entry.
--
--   S_a = Σ_v kept[a][v]·weight[v]      v ≠ y, made by forward; no upstream gradient is in it
--   dh_a = factor_a·S_a + dz_y·slope_a·weight[y]
--                                       factor_a = A·2^(k_a - m), {m, A, 0, dz_y} from record, slope_a = 1 - tanh² at y
--
--   direction_strike   kept[a][y] = 0: the target's part is made by direction_rows, exact where p_y is near 1
--   direction_finish   slope_a; which blocks of rows are to be redone, and from which references and records
--   direction_rows     dh of each active row
--
-- Both parts are of one shard: where y is on another one, the second is 0, and the sum over the shards is dh.

local infinity = 1.0 / 0.0
local THREADS, EACH = 256, 8                         -- of a CTA; elements of a thread at a time

-- K: what kept.lua shares: LOWEST, HIGHEST, LEAST_SCALE, open_block, redo_block, entry
return function(k, spec, K)
  local S = k.import "score" (k)
  local ROWS = k.abi.KEPT_BLOCK_ROWS
  local zero = k.const(k.f32, 0.0)
  local function i64(v) return k.convert(k.i64, v) end

  local function direction_strike(p)
    local a = p.row_begin + k.ctaid() * THREADS + k.tid()
    k.exit_if(k.ge(a, k.min(k.load(k.i32, p.count, 0), p.row_end)))
    local column = k.load(k.i32, p.local_target, a) - p.column_begin
    k.when(k.ult(column, p.column_end - p.column_begin), function()
      k.store(p.kept, i64(a - p.row_begin) * p.kept_stride + i64(column), k.convert(k.bf16, zero))
    end)
  end

  -- Rows of a redone block: dz gives kept anew, from the row's own maximum on; 0 at the target.
  local function restart(p, a, m)
    k.store(p.reference, a, m)
    k.store_vector(p.record, a, {m, k.const(k.f32, 1.0), zero, zero})
  end

  -- 1 - tanh² of a raw score
  local function slope_at(p, score)
    local y = S.cap(score, p.cap_in)
    return (1.0 - y) * (1.0 + y)
  end

  local function direction_finish(p)
    local block = K.open_block(p)
    local a, exists, at = block.a, block.exists, block.at
    local sums = k.load_vector(k.f32, 4, p.partial, k.load(k.i32, p.index, at))
    local m, s = sums[1], sums[2]
    local spread = (m - k.load(k.f32, p.reference, at)) + k.log2(s)
    local capped = k.ne(p.capped, 0)
    k.when(exists, function() k.store(p.slope, a, k.branch(capped, function() return slope_at(p, sums[4]) end,
      function() return k.const(k.f32, 1.0) end)) end)
    local finite = k.lt(k.abs(m), infinity) & k.lt(s, infinity)
    local inside = k.ge(spread, K.LOWEST) & k.le(spread, K.HIGHEST)
    local flat = capped & k.lt(k.abs(k.load(k.f32, p.scale, at)), K.LEAST_SCALE)
    local redo = K.redo_block(p, block, exists & finite & (~inside | flat))
    k.when(exists & redo, function() restart(p, a, m) end)
  end

  ----------------------------------------------------------------------------------------------- direction_rows
  -- What active row a takes of its sums and of its target's row of weight.
  local function load_factors(p, a)
    local record = k.load_vector(k.f32, 4, p.record, a)
    local target = k.load(k.i32, p.local_target, a)
    local pull = record[4] * k.load(k.f32, p.slope, a)
    return {
      silent = S.is_silent(record), power = k.exp2(k.load(k.f32, p.reference, a) - record[1]), of_sums = record[2],
      of_target = k.select(k.ge(target, 0), pull, 0.0), target = k.max(target, 0),
    }
  end

  local function pair_of(word) return k.bitcast(k.f32, word << 16), k.bitcast(k.f32, word & -65536) end

  local function direction_rows(p)
    local a = k.ctaid() * (THREADS // 32) + k.warp()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    local row = k.load(k.i32, p.index, a)
    local f = load_factors(p, a)
    local is_f32 = k.ne(p.out_is_f32, 0)
    local sums = k.offset(p.sums, i64(a) * i64(p.depth) * 4)
    local weight = k.offset(p.weight, i64(f.target) * p.weight_stride * 2)
    local out = k.offset(p.out, i64(row) * p.out_stride * i64(k.select(is_f32, k.const(k.i32, 4), 2)))
    local pulls = ~f.silent & k.ne(f.of_target, 0.0)
    -- A row without an upstream gradient has none, whatever its sums. These come to the size of probabilities first:
    -- A times the power alone may leave fp32's range.
    local function value(sum, w)
      local all = k.fma(f.of_sums, sum * f.power, k.select(pulls, f.of_target * w, 0.0))
      return k.select(f.silent, 0.0, all)
    end

    -- Rows of sums lie side by side: all of them start at 16 bytes where depth is a multiple of 4.
    local vectors = spec.alignment >= 16 and k.select(k.eq(p.depth & 3, 0), p.depth // EACH, 0) or k.const(k.i32, 0)
    k.loop(k.lane(), vectors, 32, nil, function(i)
      local low, high = k.load_vector(k.f32, 4, sums, i * 2), k.load_vector(k.f32, 4, sums, i * 2 + 1)
      local words, made = k.load_vector(k.i32, 4, weight, i, {const = true}), {}
      for j = 1, 4 do
        local of, e = j <= 2 and low or high, (j - 1) % 2 * 2
        local x, y = pair_of(words[j])
        made[2 * j - 1], made[2 * j] = value(of[e + 1], x), value(of[e + 2], y)
      end
      k.branch(is_f32, function()
        k.store_vector(out, i * 2, {made[1], made[2], made[3], made[4]})
        k.store_vector(out, i * 2 + 1, {made[5], made[6], made[7], made[8]})
      end, function()
        local packed = {}
        for j = 1, 4 do packed[j] = k.pack(k.bf16, made[2 * j - 1], made[2 * j]) end
        k.store_vector(out, i, packed)
      end)
    end)
    k.loop(vectors * EACH + k.lane(), p.depth, 32, nil, function(i)
      local made = value(k.load(k.f32, sums, i), k.convert(k.f32, k.load(k.bf16, weight, i, {const = true})))
      k.branch(is_f32, function() k.store(out, i, made) end, function() k.store(out, i, k.convert(k.bf16, made)) end)
    end)
  end

  K.entry("direction_strike", THREADS, 0, direction_strike)
  K.entry("direction_finish", ROWS, ROWS // 32 * 4, direction_finish)
  K.entry("direction_rows", THREADS, 0, direction_rows)
end
