-- lora.lua: what stands around the products of a head with a low-rank adapter: scores x = h·Wᵀ + u·Bᵀ.
--
--   lora_project   u = s·(h·Aᵀ)                    hidden (n,D), A (r,D) -> lora_u (n,r), rounded to the operand dtype
--   lora_rows      G = dz·B, and dh = acc + G·A    as grad_hidden, product.lua
--   lora_columns   dB = dzᵀ·u, and dA = Gᵀ·h       as grad_weight
--   lora_bound     max |s·G| of each row, of which dz_scale makes the power of two that fp16 needs
--   lora_round     s·G, rounded to the operand dtype, for the second two products
--   lora_factor    u times what saved exponentials lack of dz, for dB
--
-- source: LoRA, arXiv:2106.09685. s stands where it costs no rounding of its own.

return function(k, spec)
  local M = k.import "engine" (k, spec)
  local H = k.import "head" (k, spec, M)
  local WARPS, GATHERED = 8, k.abi.GATHER_ROWS -- of a CTA of rows; zeros follow up to a multiple

  k.import "product" (k, spec, "grad_hidden", "lora_rows")
  k.import "product" (k, spec, "grad_weight", "lora_columns")

  local function project(p)
    M.begin(k.tid())
    local tile_m, tile_n = M.raster(k.ctaid(), p.tiles_m, p.tiles_n)
    local last_row = k.min(k.load(k.i32, p.count, 0), p.row_end)
    local first_row, first_n = p.row_begin + tile_m * M.rows, tile_n * M.columns
    k.exit_if(k.ge(first_row, last_row))
    local a = {weight = p.lora_a, weight_stride = p.lora_a_stride, depth = p.depth}
    local hidden = H.hidden(p, first_row, last_row)
    local adapter = H.weight(a, function(row) return first_n + row end, p.rank)

    local function finish(_, acc)
      local function scaled(x) return k.select(k.eq(p.lora_scale, 0.0), 0.0, x * p.lora_scale) end
      for mi = 0, M.mi - 1 do
        for h = 0, 1 do
          local active = first_row + M.row(mi, h)
          local at = k.convert(k.i64, active) * k.convert(k.i64, p.rank)
          for ni = 0, M.ni - 1 do
            local n = first_n + M.warp_n * M.warp_columns + M.column(ni, 0)
            k.when(k.lt(active, p.row_end) & k.lt(n, p.rank), function()
              local quad = acc[mi + 1][ni + 1]
              M.store_pair(M.element, p.lora_u, at + k.convert(k.i64, n), scaled(quad[h * 2 + 1]),
                scaled(quad[h * 2 + 2]), true)
            end)
          end
        end
      end
    end

    M.stream(hidden, adapter, 1, H.steps(p), nil, finish)
  end

  k.kernel {
    entry = "lora_project", threads = M.threads, min_ctas = 1, shared_bytes = M.shared_bytes, body = project,
    tile = M.tile,
  }

  local function wide(v) return M.element == k.f32 and v or k.convert(k.f32, v) end
  local function narrow(v) return M.element == k.f32 and v or k.convert(M.element, v) end

  -- visit(at) for this lane's elements of its warp's row; combine(active, state) behind them.
  local function over_row(p, state, visit)
    local active = k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(active, k.load(k.i32, p.count, 0)))
    local first = k.convert(k.i64, active) * k.convert(k.i64, p.rank)
    return active, k.loop(k.lane(), p.rank, 32, state, function(i, now)
      return visit(first + k.convert(k.i64, i), now)
    end)
  end

  k.kernel {entry = "lora_bound", threads = WARPS * 32, body = function(p)
    local active, most = over_row(p, k.const(k.f32, 0.0), function(at, most)
      return k.max_nan(most, k.abs(k.load(k.f32, p.lora_sum, at) * p.lora_scale))
    end)
    for _, mask in ipairs {16, 8, 4, 2, 1} do most = k.max_nan(most, k.shuffle_xor(most, mask)) end
    k.when(k.eq(k.lane(), 0), function() k.store(p.bound, active, most) end)
  end}

  k.kernel {entry = "lora_factor", threads = WARPS * 32, body = function(p)
    local row, active = k.ctaid() * WARPS + k.warp(), k.min(k.load(k.i32, p.count, 0), p.row_end) - p.row_begin
    local filled = (k.max(active, 0) + (GATHERED - 1)) // GATHERED * GATHERED
    k.exit_if(k.ge(row, k.min(filled, p.row_end - p.row_begin)))
    local exists = k.lt(row, active)
    local a = p.row_begin + k.select(exists, row, 0)
    local factor = k.branch(exists, function() return k.load(k.f32, p.factor, a) end,
      function() return k.const(k.f32, 0.0) end)
    local function at(row, i) return k.convert(k.i64, row) * k.convert(k.i64, p.rank) + k.convert(k.i64, i) end
    k.loop(k.lane(), p.rank, 32, nil, function(i)
      local u = k.load(M.element, p.lora_u, at(a, i))
      local scaled = k.select(k.eq(factor, 0.0), 0.0, wide(u) * factor)
      k.store(p.lora_scaled, at(row, i), narrow(scaled))
    end)
  end}

  k.kernel {entry = "lora_round", threads = WARPS * 32, body = function(p)
    local scale = k.branch(k.is_null(p.scale_pair), function() return p.lora_scale end,
      function() return p.lora_scale * k.load(k.f32, p.scale_pair, 0) end)
    over_row(p, nil, function(at)
      k.store(p.lora_gradient, at, narrow(k.load(k.f32, p.lora_sum, at) * scale))
    end)
  end}
end
