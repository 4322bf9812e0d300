-- dz.lua (sm_90a): the gradient of the raw scores of one chunk, recomputed and stored in the operand dtype.
--
--   dz = 2^u·(A + B·u)      u = t - m; with p = 2^u/s and w = log2 p this is p·(α + β·w)·∂t/∂x, where
--                           α = -g - e·H, β = -e·ln2, g = ∂L/∂logprob, e = ∂L/∂entropy (folded into A, B by `record`)
--   dz_y                    at the target, from `record`: exact where p_y is near 1
--   dz ← dz·(1 - tanh²)     with softcap, at the target too
--   0                       where A = B = dz_y = 0, a row without upstream gradient, whatever its scores
--
-- Shapes: hidden (n,D), weight (V,D), record (n,4) {m, A, B, dz_y} -> dz (rows of the chunk, columns of the chunk), and
-- with a bias gradient bias_part (tiles of rows, columns of the chunk): column sums of each tile in fp32.
-- Rows behind the last active one become zeros up to the end of their row panel: the products read whole boxes.
-- fp16: dz is stored times scale_pair[0], one power of two a call, and the products undo it.
--
-- A unit is a row panel against two tiles of columns, one a warpgroup, or cooperative one tile.

return function(k, spec, entry)
  local staging = k.import "staging"
  local T = k.import "tune".choose(spec)
  local SUMS_BYTES = T.width * 4                         -- of a warp, one a column
  local H = k.import "engine" (k, spec, T)
  local S = k.import "score" (k)
  local B = staging.over(k, spec, H)
  local TILES = T.schedule == "ping-pong" and 2 or 1     -- of a unit
  local WARPS = H.warps // TILES                         -- of a tile
  local PANEL = H.rows * H.cluster
  local STAGED_COLUMNS = H.box

  local function problem(p)
    local q = {active = H.active(p)}
    q.rows = k.max(k.min(q.active, p.row_end) - p.row_begin, 0)
    q.panels = (q.rows + (PANEL - 1)) // PANEL
    q.tiles = (p.column_end - p.column_begin + (H.columns - 1)) // H.columns
    q.across = (q.tiles + (TILES - 1)) // TILES
    q.units = q.panels * q.across
    q.steps = H.steps(p)
    return q
  end

  local function unit_at(_, q, unit)
    local panel, across = H.rasterise(unit, q.panels, q.across, T.raster)
    local tile = across * TILES
    return {row = panel * PANEL + H.rank() * H.rows, tile = tile, tiles = k.min(q.tiles - tile, TILES)}
  end

  local function produce(p, u, start, q)
    local rows = k.select(k.eq(q.active, p.n), p.hidden_map, p.gathered_map)
    return k.loop(k.const(k.i32, 0), u.tiles, 1, start, function(i, at)
      local column = (u.tile + i) * H.columns
      return H.produce(at, q.steps, H.with_adapter(p, {map = rows, major = "k", at = u.row}, "lora_u_map", u.row),
        H.with_adapter(p, {map = p.weight_map, major = "k", at = column, evict = "first"}, "lora_b_map", column))
    end)
  end

  ------------------------------------------------------------------------------------------------ the epilogue
  local function load_row(p, u, w, h)
    local active = p.row_begin + u.row + H.row(w, h)
    local valid = k.lt(active, p.row_begin + u.rows)
    local at = k.select(valid, active, p.row_begin)
    local r = k.load_vector(k.f32, 4, p.record, at)
    return {
      live = valid & ~S.is_silent(r), m = r[1], a = r[2], b = r[3], dz_y = r[4], scale = k.load(k.f32, p.scale, at),
      target = k.load(k.i32, p.local_target, at) - (p.column_begin + u.column), -- of the tile
    }
  end

  local function gradient(y, row, column)
    local u = k.fma(y, row.scale, -row.m)
    if spec.bias then u = k.max_nan(u, S.lowest) end
    local slope = spec.entropy and k.fma(row.b, u, row.a) or row.a
    local dz = k.select(k.eq(column, row.target), row.dz_y, k.exp2(u) * slope)
    if spec.softcap then dz = dz * ((1.0 - y) * (1.0 + y)) end
    return k.select(row.live, dz, 0.0)
  end

  -- Column sums of a tile: the 8 lanes of a column, and then, in order, the warps of the tile.
  local function warp_sums() return H.staging + H.warps * staging.bytes + H.warp * SUMS_BYTES end

  local function put_column_sums(p, first, sums)
    for i, sum in ipairs(sums) do
      for _, mask in ipairs {4, 8, 16} do sum = sum + k.shuffle_xor(sum, mask) end
      k.when(k.lt(H.lane, 4), function()
        k.shared_store(warp_sums() + H.column(first + (i - 1) // 2, (i - 1) % 2) * 4, sum)
      end)
    end
  end

  local function store_column_sums(p, u)
    H.tile_sync()
    local of_chunk = k.lt(u.row, p.row_end - p.row_begin) -- a row panel may reach beyond it by whole tiles
    local of_tile = warp_sums() - (H.warp & (WARPS - 1)) * SUMS_BYTES
    local width = p.column_end - p.column_begin
    k.loop(k.reread_tid() & (WARPS * 32 - 1), H.width, WARPS * 32, nil, function(column)
      k.when(of_chunk & k.lt(u.column + column, width), function()
        local sum = k.shared_load(k.f32, of_tile + column * 4)
        for warp = 1, WARPS - 1 do sum = sum + k.shared_load(k.f32, of_tile + column * 4 + warp * SUMS_BYTES) end
        local row = k.convert(k.i64, k.udiv(u.row, H.rows)) * k.convert(k.i64, width)
        k.store(p.bias_part, row + k.convert(k.i64, u.column + column), sum)
      end)
    end)
    H.tile_sync()
  end

  local function finish(p, acc, u)
    H.reread()
    acc = H.add_bias(acc, p.bias, p.column_begin + u.column, p.column_end - 1)
    local storage = spec.dtype == "fp16" and k.load(k.f32, p.scale_pair, 0) or nil
    local staged = B.place()
    for first = 0, H.width // 8 - 1, STAGED_COLUMNS // 8 do
      local sums = {}
      for w = 0, H.blocks - 1 do
        local rows = {[0] = load_row(p, u, w, 0), [1] = load_row(p, u, w, 1)}
        local pairs, y = {}, {}
        for i = H.at(w, 0, first, 0), H.at(w, 1, first + STAGED_COLUMNS // 8 - 1, 1) do y[#y + 1] = acc[i] end
        if spec.softcap then y = S.cap_all(y, p.cap_in) end
        for j = first, first + STAGED_COLUMNS // 8 - 1 do
          for h = 0, 1 do
            local dz = {}
            for e = 0, 1 do
              dz[e] = gradient(y[H.at(0, h, j - first, e)], rows[h], H.column(j, e))
              local i = 2 * (j - first) + e + 1
              if spec.bias_grad then sums[i] = sums[i] and sums[i] + dz[e] or dz[e] end
              if storage then dz[e] = dz[e] * storage end
            end
            pairs[#pairs + 1] = B.pair(dz[0], dz[1])
          end
        end
        B.store(p.dz_map, staged, function() return u.column + 8 * first, u.row + H.warp_row(w) end, pairs)
      end
      if spec.bias_grad then put_column_sums(p, first, sums) end
    end
    if spec.bias_grad then
      k.when(~k.is_null(p.bias_part), function() store_column_sums(p, u) end)
    end
  end

  local function consume(p)
    return function(u, index, q)
      local mine = TILES == 2 and k.zext(k.i32, H.second()) or k.const(k.i32, 0)
      k.branch(k.lt(mine, u.tiles), function()
        H.take_turn()
        H.each_part(H.advance(index, mine, q.steps), q.steps, "k", "k", nil, function(acc, first)
          finish(p, acc, {row = u.row, rows = q.rows, column = (u.tile + mine) * H.columns + first})
        end)
      end, function()
        H.take_turn()
        H.pass_turn()
      end)
      return H.advance(index, u.tiles, q.steps)
    end
  end

  H.kernel(entry or "dz_map", {problem = problem, unit_at = unit_at, produce = produce, consume = consume,
                               finish = B.finish})
end
