-- product.lua (portable): the two matrix products of the backward pass, out (M,N) = A (M,K) · B (K,N), N = D.
--
--   grad_hidden: out[index[a]][d] = factor[a]·Σ_v dz[a][v]·weight[v][d]  M = active rows, K = columns of the chunk
--   grad_weight: out[v][d]        = Σ_a dz[a][v]·hidden[index[a]][d]     M = columns,     K = active rows of the chunk
--
-- Without factor it is 1; without index, in grad_weight, hidden holds the active rows of the chunk one after the other.
-- No operand is transposed in memory: dz is read K-major for grad_hidden and MN-major for grad_weight, the other
-- operand MN-major in both. The epilogue adds to and stores accumulators and the final gradient as its flags ask.
-- Accumulators are fp32; those of a weight's gradient in bf16 have 20 or 24 bits (sums.lua), unless it is an adapter's.
-- With spec.bias what is stored as the gradient has one more term (added.lua).
--
-- as: the entry's name, where it is the product of an adapter's operands: those of any depth

return function(k, spec, entry, as)
  local M = k.import "engine" (k, spec)
  local sums = {[4] = k.import "sums" (k, 4), [8] = k.import "sums" (k, 8)}
  local for_hidden = entry == "grad_hidden"
  local out_type = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.out_dtype]
  if as and not for_hidden then out_type = M.element end
  local added = k.import "added" (k, spec)
  local paired = spec.alignment >= 16 -- outputs too have the alignment that the spec promises

  -- Of an adapter's operands rows of factor 0 are left out: they have no gradient, and may be no numbers.
  local function live_rows(p, in_depth)
    return function(depth_row, at)
      local exists, active = in_depth(depth_row, at), depth_row + at.step * M.depth
      return exists & k.branch(k.is_null(p.factor), function() return k.const(k.i1, true) end, function()
        return k.ne(k.load(k.f32, p.factor, p.row_begin + k.select(exists, active, 0)), 0.0)
      end)
    end
  end

  local function body(p)
    M.begin(k.tid())
    local tile_m, tile_n = M.raster(k.ctaid(), p.tiles_m, p.tiles_n)
    local last_row = k.min(k.load(k.i32, p.count, 0), p.row_end)
    local rows = k.max(last_row - p.row_begin, 0)           -- active rows of the chunk
    local columns = p.column_end - p.column_begin
    local depth = spec.hidden > 0 and spec.hidden or p.depth

    local first_m, first_n = tile_m * M.rows, tile_n * M.columns
    local size_m, size_k = rows, columns
    if not for_hidden then size_m, size_k = columns, rows end
    k.exit_if(k.ge(first_m, size_m) | k.ne(p.if_any, 0) & k.le(last_row, 0))
    local steps = (size_k + (M.depth - 1)) // M.depth

    local dz_row, operand_row = p.dz_stride * M.bytes, p.operand_stride * M.bytes
    local function in_depth(depth_row, at) return k.lt(depth_row + at.step * M.depth, size_k) end

    local a = {size = M.rows, aligned = true, base = p.dz, row_bytes = dz_row}
    if for_hidden then
      a.major, a.step_bytes = "k", k.const(k.i64, M.depth * M.bytes)
      a.key = function(row) return first_m + row end
      a.valid = function(m) return k.lt(m, size_m) end
      a.limit = function(at) return size_k - at.step * M.depth end
    else
      a.major, a.step_bytes = "mn", dz_row * M.depth
      a.base = k.offset(p.dz, first_m * M.bytes)
      a.key = function(row) return row end
      a.valid = in_depth
      a.limit = function() return size_m - first_m end
    end

    local b = {
      major = "mn", size = M.columns, aligned = spec.alignment >= 16, row_bytes = operand_row,
      base = k.offset(p.operand, first_n * M.bytes),
      key = function(row) return row end, valid = as and not for_hidden and live_rows(p, in_depth) or in_depth,
      limit = function() return depth - first_n end,
    }
    if for_hidden then
      b.base = k.offset(b.base, k.convert(k.i64, p.column_begin) * operand_row)
      b.step_bytes = operand_row * M.depth
    else
      b.source_at = function(depth_row, at)
        local active = depth_row + at.step * M.depth
        local real = k.select(k.lt(active, size_k), active, 0)
        return k.branch(k.is_null(p.index), function() return real end,
          function() return k.load(k.i32, p.index, p.row_begin + real, {const = true}) end)
      end
    end

    local function finish(_, acc)
      local scale = spec.dtype == "fp16" and k.load(k.f32, p.scale_pair, 1) or nil
      local read_acc, write_acc, write_out = k.ne(p.read_acc, 0), k.ne(p.write_acc, 0), k.ne(p.write_out, 0)
      for mi = 0, M.mi - 1 do
        for h = 0, 1 do
          local m = first_m + M.row(mi, h)
          local valid = k.lt(m, size_m)
          local acc_row = m + (for_hidden and p.row_begin or p.column_begin)
          local out_row = acc_row
          if for_hidden then
            out_row = k.load(k.i32, p.index, k.select(valid, acc_row, p.row_begin), {const = true})
          end
          local factor = for_hidden and k.branch(k.is_null(p.factor), function() return k.const(k.f32, 1.0) end,
            function() return k.load(k.f32, p.factor, k.select(valid, acc_row, p.row_begin)) end)
          local add = added.nothing()
          if spec.bias and for_hidden then add = added.of_hidden(p, k.select(valid, acc_row, p.row_begin)) end
          if spec.bias and not for_hidden then add = added.of_weight(p) end
          local acc_at = k.convert(k.i64, acc_row) * p.acc_stride
          local out_at = k.convert(k.i64, out_row) * p.out_stride
          for ni = 0, M.ni - 1 do
            local n = first_n + M.warp_n * M.warp_columns + M.column(ni, 0)
            local wide_n = k.convert(k.i64, n)
            k.when(valid & k.lt(n, depth), function()
              local x, y = acc[mi + 1][ni + 1][h * 2 + 1], acc[mi + 1][ni + 1][h * 2 + 2]
              if scale then x, y = x * scale, y * scale end
              if factor then x, y = x * factor, y * factor end
              local sum = k.branch(read_acc,
                function()
                  return {x + k.load(k.f32, p.acc, acc_at + wide_n), y + k.load(k.f32, p.acc, acc_at + wide_n + 1)}
                end,
                function() return {x, y} end)
              k.when(write_acc, function()
                M.store_pair(k.f32, p.acc, acc_at + wide_n, sum[1], sum[2], paired)
              end)
              k.when(write_out, function()
                local x, y = add(sum[1], sum[2], n)
                M.store_pair(out_type, p.out, out_at + wide_n, x, y, paired)
              end)
            end)
          end
        end
      end
    end

    -- The same for a weight's gradient in bf16: 16 accumulators of 20 or 24 bits at a time, of four neighbours along N.
    local function finish_sums(S, acc)
      local read_acc, write_acc = k.ne(p.read_acc, 0), k.ne(p.write_acc, 0)
      local low = S.place(p.acc, {sums = M.mi * M.ni * 4, threads = M.threads}, tile_m * p.tiles_n + tile_n, M.tid)

      local function high_of(at, real)
        return k.branch(real, function()
          if paired then return k.load(k.i32, p.out, at >> 1) end
          return k.zext(k.i32, k.load(k.i16, p.out, at)) | (k.zext(k.i32, k.load(k.i16, p.out, at + 1)) << 16)
        end, function() return k.const(k.i32, 0) end)
      end
      local function store_high(at, word)
        if paired then return k.store(p.out, at >> 1, word) end
        k.store(p.out, at, k.convert(k.i16, word)); k.store(p.out, at + 1, k.convert(k.i16, k.lshr(word, 16)))
      end

      local function finish_group(mi, group)
        local sums, places, add = {}, {}, spec.bias and added.of_weight(p) or added.nothing()
        for ni = group * 4, group * 4 + 3 do
          local n = first_n + M.warp_n * M.warp_columns + M.column(ni, 0)
          for h = 0, 1 do
            local m = first_m + M.row(mi, h)
            local quad = acc[mi + 1][ni + 1]
            sums[#sums + 1], sums[#sums + 2] = quad[h * 2 + 1], quad[h * 2 + 2]
            places[#places + 1] = {real = k.lt(m, size_m) & k.lt(n, depth), n = n,
                                   at = k.convert(k.i64, m + p.column_begin) * p.out_stride + k.convert(k.i64, n)}
          end
        end
        local vector = mi * (M.ni // 4) + group
        sums = k.branch(read_acc, function()
          local more, words = {}, low.load(vector)
          for i, place in ipairs(places) do
            local before = S.join(high_of(place.at, place.real), words, 2 * i - 2)
            more[2 * i - 1], more[2 * i] = sums[2 * i - 1] + before[1], sums[2 * i] + before[2]
          end
          return more
        end, function() return sums end)
        local function each_real(visit)
          for i, place in ipairs(places) do k.when(place.real, function() visit(2 * i - 1, place.at, place.n) end) end
        end
        k.branch(write_acc, function()
          local bits = {}
          for i = 1, S.group do bits[i] = S.round(sums[i]) end
          low.store(vector, bits, 0)
          each_real(function(i, at) store_high(at, S.high(bits[i], bits[i + 1])) end)
        end, function()
          each_real(function(i, at, n)
            local x, y = add(sums[i], sums[i + 1], n)
            M.store_pair(out_type, p.out, at, x, y, paired)
          end)
        end)
      end

      for mi = 0, M.mi - 1 do
        for group = 0, M.ni // 4 - 1 do finish_group(mi, group) end
      end
    end

    local function finish_split(_, acc)
      k.branch(k.eq(p.acc_stride, 4), function() finish_sums(sums[4], acc) end, function() finish_sums(sums[8], acc) end)
    end

    local splits = not for_hidden and spec.out_dtype == "bf16" and not as
    M.stream(a, b, 1, steps, nil, splits and finish_split or finish)
  end

  k.kernel {
    entry = as or entry, threads = M.threads, min_ctas = 1, shared_bytes = M.shared_bytes, body = body,
    tile = M.tile,
  }
end
