-- dz.lua (portable): the gradient of the raw scores of one chunk, recomputed and stored in the operand dtype.
--
--   dz = 2^u·(A + B·u)      u = t - m; with p = 2^u/s and w = log2 p this is p·(α + β·w)·∂t/∂x, where
--                           α = -g - e·H, β = -e·ln2, g = ∂L/∂logprob, e = ∂L/∂entropy (folded into A, B by `record`)
--   dz_y                    at the target, from `record`: exact where p_y is near 1
--   dz ← dz·(1 - tanh²)     with softcap, at the target too
--   0                       where A = B = dz_y = 0, a row without upstream gradient, whatever its scores
--
-- Shapes: hidden (n,D), weight (V,D), record (n,4) {m, A, B, dz_y} -> dz (row_end - row_begin, dz_stride), and with a
-- bias gradient bias_part (tiles_m, column_end - column_begin): column sums of each tile in fp32.
-- Rows from *count on and columns from column_end on store nothing and zero: the products read whole 16-byte chunks.
-- fp16: dz is stored times scale_pair[0], one power of two a call, and the products undo it.

return function(k, spec, entry)
  local M = k.import "engine" (k, spec)
  local H = k.import "head" (k, spec, M)
  local S = k.import "score" (k)

  local function body(p)
    M.begin(k.tid())
    local tile_m, tile_n = M.raster(k.ctaid(), p.tiles_m, p.tiles_n)
    local last_row = k.min(k.load(k.i32, p.count, 0), p.row_end)
    local first_row = p.row_begin + tile_m * M.rows
    k.exit_if(k.ge(first_row, last_row))
    local first_column = p.column_begin + tile_n * M.columns
    local steps = H.steps(p)

    local hidden = H.hidden(p, first_row, last_row)
    local weight = H.weight(p, function(row) return first_column + row end, p.column_end)

    local warp_column = first_column + M.warp_n * M.warp_columns

    local function gradient(y, row, column)
      local u = k.fma(y, row.scale, -row.m)
      if spec.bias then u = k.max_nan(u, S.lowest) end
      local slope = spec.entropy and k.fma(row.b, u, row.a) or row.a
      local dz = k.select(k.eq(column, row.target), row.dz_y, k.exp2(u) * slope)
      if spec.softcap then dz = dz * ((1.0 - y) * (1.0 + y)) end
      return k.select(row.live & k.lt(column, p.column_end), dz, 0.0)
    end

    local function load_row(mi, h)
      local active = first_row + M.row(mi, h)
      local valid = k.lt(active, last_row)
      local at = k.select(valid, active, p.row_begin)
      local r = k.load_vector(k.f32, 4, p.record, at)
      return {
        active = active, valid = valid, live = valid & ~S.is_silent(r), m = r[1], a = r[2], b = r[3], dz_y = r[4],
        scale = k.load(k.f32, p.scale, at, {const = true}), target = k.load(k.i32, p.local_target, at, {const = true}),
      }
    end

    local function finish(_, acc)
      acc = H.add_bias(p, acc, warp_column, p.column_end)
      local sums = {} -- of this thread's rows, a column
      local storage = spec.dtype == "fp16" and k.load(k.f32, p.scale_pair, 0) or nil
      for mi = 0, M.mi - 1 do
        for h = 0, 1 do
          local row = load_row(mi, h)
          local out = k.convert(k.i64, row.active - p.row_begin) * p.dz_stride
          local y = {}
          for ni = 0, M.ni - 1 do
            for e = 0, 1 do y[#y + 1] = acc[mi + 1][ni + 1][h * 2 + e + 1] end
          end
          if spec.softcap then y = S.cap_all(y, p.cap_in) end
          for ni = 0, M.ni - 1 do
            local pair = {}
            for e = 0, 1 do
              local column = warp_column + M.column(ni, e)
              local at = ni * 2 + e + 1
              local dz = gradient(y[at], row, column)
              sums[at] = sums[at] and sums[at] + dz or dz
              pair[e + 1] = storage and dz * storage or dz
            end
            local local_column = k.convert(k.i64, warp_column + M.column(ni, 0) - p.column_begin)
            k.when(row.valid & k.lt(local_column, p.dz_stride), function()
              M.store_pair(M.element, p.dz, out + local_column, pair[1], pair[2], true)
            end)
          end
        end
      end
      return sums
    end

    local none = {}
    for i = 1, M.ni * 2 do none[i] = k.const(k.f32, 0.0) end
    local sums = M.stream(hidden, weight, 1, steps, none, finish)

    if spec.bias_grad then
      -- Column sums: the 8 lanes of a column, then the warps along M, in order.
      local shared = k.shared()
      k.when(~k.is_null(p.bias_part), function()
        for ni = 0, M.ni - 1 do
          for e = 0, 1 do
            local sum = sums[ni * 2 + e + 1]
            for _, mask in ipairs {4, 8, 16} do sum = sum + k.shuffle_xor(sum, mask) end
            k.when(k.lt(M.lane, 4), function()
              local column = M.warp_n * M.warp_columns + M.column(ni, e)
              k.shared_store(shared + (M.warp_m * M.columns + column) * 4, sum)
            end)
          end
        end
        k.barrier()
        local column = M.tid
        k.when(k.lt(column, M.columns) & k.lt(first_column + column, p.column_end), function()
          local sum = k.shared_load(k.f32, shared + column * 4)
          for m = 1, M.warps_m - 1 do
            sum = sum + k.shared_load(k.f32, shared + (m * M.columns + column) * 4)
          end
          local width = k.convert(k.i64, p.column_end - p.column_begin)
          local at = k.convert(k.i64, tile_m) * width + k.convert(k.i64, first_column + column - p.column_begin)
          k.store(p.bias_part, at, sum)
        end)
      end)
    end
  end

  k.kernel {
    entry = entry or "dz", threads = M.threads, min_ctas = 1, shared_bytes = M.shared_bytes, body = body,
    tile = M.tile,
  }
end
