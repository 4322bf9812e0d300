-- online.lua (sm_90a): scores of all active rows against the whole vocabulary, reduced as they appear: forward with any
-- parts.
--
--   hidden (n,D), weight (V,D) -> part[leaf][m|s|q][row], zy[row]
--   m = max t,  s = Σ 2^(t-m),  q = Σ (t-m)·2^(t-m)        over the columns of the leaf, in log2 units
--
-- source: online softmax, arXiv:1805.02867, with the shift inside q so that the entropy does not cancel.
--
-- Canonical order. One warpgroup owns a leaf of 768 columns of its rows from first to last column; each thread takes
-- its columns in blocks of 64, moving its maximum once a block; the four threads of a row merge. Leaves are folded by
-- combine. Tiles, grid, N and position in the batch do not enter, so a row's bits do not depend on them.
--
-- Ping-pong, a unit is a row panel against two neighbouring leaves, one a warpgroup: their tiles alternate in the
-- ring, and the warpgroups take turns. What does not fill a wave goes leaf by leaf. Cooperative, a unit is a panel of
-- rows against one leaf, and each warpgroup has half of the rows.
--
-- hooks, if given: function(H) -> K, of which each may be absent:
--   K.row(p, u, row) -> see(block_column, exponentials, m, y)   before each row of a tile, and for each of its blocks
--     as it is summed: 2^(t-m) of the columns of this thread, m the maximum so far, y: with a softcap their tanh. A
--     block of a row with h = 0 comes before that of its neighbour with h = 1. Columns of a launch begin at
--     p.column_begin.
--   K.mark(p) -> mark   the exponentials that see gets: mark of score.lua's accumulate
--   K.meet(p, active, row_end, scale, blocks, tile)   before each row of a tile is summed: active row `active`, which
--     exists below row_end; t = scale·y, and of each block {column, y, top}: column of y[1], the others of which stand as
--     in an accumulator of wgmma; the largest t. All columns count, and scale is not negative; beyond the vocabulary t is
--     below any floor. tile: {row, column}, the active row and the column at which it begins; all lanes together
--   K.met(p, tile)   behind the last row of a tile
--   K.totals(acc, rows, real) -> totals[row][block]   Σ y of a tile's accumulator, for sums that have it; real: columns
--     that are, from the thread's first on, or nil for all
--   K.sum(p, active, sum, leaf)   behind the last tile of a leaf: the sum {m, s} of its columns, of an active row
--   K.hold(p, rows, column, lane)   in the place of storing the targets' scores: raw scores of a tile from `column` on,
--     of each row {active, exists, y}, y as an accumulator of wgmma has them
--   K.raw(p, rows, column, lane)   the same beside that; column: of the launch
--   K.by_columns   columns of a launch begin at p.column_begin
--   K.finish()   behind the last tile
--   K.aside(p, warp, warps)   in warps that are idle otherwise, where tune.lua says that the kernel has such: this is warp
--     `warp` of `warps`

local LEAF, BLOCK = k.abi.LEAF_COLUMNS, 64

-- Part short: all rows are one panel, of which each CTA of a cluster has p.box_rows, or none. Its boxes have no more,
-- as rows that a box lacks cost the copy engine most; the other rows of a tile are zeros. A CTA without rows loads its
-- part of the weight for the others.

return function(k, spec, entry, hooks)
  local T = k.import "tune".choose(spec)
  local H = k.import "engine" (k, spec, T)
  local K = hooks and hooks(H) or {}
  local S = k.import "score" (k)
  local LEAVES = T.schedule == "ping-pong" and 2 or 1 -- of a unit
  local TILES = LEAF // H.columns                     -- of a leaf
  local PANEL = H.rows * H.cluster
  local SHORT = spec.parts.short

  -- In the vocabulary, of the columns of the launch.
  local function first_column(p) return K.by_columns and p.column_begin or k.const(k.i32, 0) end

  -- Everything both roles must agree on.
  local function problem(p)
    local q = {active = H.active(p)}
    q.row_end = k.min(q.active, p.row_end)
    q.panels = k.max(q.row_end - p.row_begin + (PANEL - 1), 0) // PANEL
    q.across = (p.vocab_valid + (LEAVES * LEAF - 1)) // (LEAVES * LEAF)
    -- The last, partial wave of pairs: single leaves if they can all run at once.
    local whole, clusters = q.panels * q.across, k.udiv(k.reread_nctaid(), H.cluster)
    local rest = LEAVES == 2 and k.urem(whole, clusters) or k.const(k.i32, 0)
    rest = k.select(k.le(rest * 2, clusters), rest, 0)
    q.whole, q.units = whole - rest, whole + rest
    q.steps = H.steps(p)
    return q
  end

  local function tiles_of(p, leaf)
    local left = p.vocab_valid - leaf * LEAF
    return k.max(k.min((left + (H.columns - 1)) // H.columns, TILES), 0)
  end

  local function unit_at(p, q, unit)
    local single = unit - q.whole
    local is_single = k.ge(single, 0)
    local panel, across = H.rasterise(k.select(is_single, q.whole + (single >> 1), unit), q.panels, q.across, T.raster)
    local leaf = across * LEAVES + k.select(is_single, single & 1, 0)
    local row = SHORT and H.rank() * p.box_rows or panel * PANEL + H.rank() * H.rows
    local u = {leaf = leaf, row = row, first = tiles_of(p, leaf)}
    u.second = LEAVES == 2 and k.select(is_single, 0, tiles_of(p, leaf + 1)) or k.const(k.i32, 0)
    return u
  end

  local function has_rows(p, u, row_end) return k.lt(p.row_begin + u.row, row_end) end

  ---------------------------------------------------------------------------------------------- the producer
  local function produce(p, u, start, q)
    local whole = k.eq(q.active, p.n)
    local rows = k.select(whole, p.hidden_map, p.gathered_map)
    local row = u.row + k.select(whole, p.row_begin, 0)
    local shared = u.second * 2                       -- tiles that alternate; the first leaf goes on alone behind them
    return k.loop(k.const(k.i32, 0), u.first + u.second, 1, start, function(i, at)
      local paired = k.lt(i, shared)
      local tile = k.select(paired, k.lshr(i, 1) + (i & 1) * TILES, i - k.lshr(shared, 1))
      -- W passes once through L2 for all row panels of a group, hidden is read again and again
      local column = u.leaf * LEAF + tile * H.columns
      local hidden = {map = rows, major = "k", at = row}
      if SHORT then hidden.rows = k.select(has_rows(p, u, q.row_end), p.box_rows, 0) end
      return H.produce(at, q.steps, H.with_adapter(p, hidden, "lora_u_map", u.row),
        H.with_adapter(p, {map = p.weight_map, major = "k", at = column, evict = "first"}, "lora_b_map", column))
    end)
  end

  ------------------------------------------------------------------------------------------------ the multipliers
  local function consume(p)
    local rows = {}                                   -- the rows of this thread
    for w = 0, H.blocks - 1 do
      for h = 0, 1 do rows[#rows + 1] = {w = w, h = h} end
    end
    local function row_end(u)
      local last = k.min(k.load(k.i32, p.count, 0), p.row_end)
      return SHORT and k.min(last, p.row_begin + u.row + p.box_rows) or last
    end
    local function read_row(type, ptr, u, row, default)
      local active = p.row_begin + u.row + H.row(row.w, row.h)
      local valid = k.lt(active, u.row_end)
      return k.select(valid, k.load(type, ptr, k.select(valid, active, p.row_begin)), default)
    end

    -- One thread of the grid holds a row's target, in column 8j + 2(lane mod 4) + e: it stores the raw score.
    local function store_targets(acc, u, tile_column)
      local relative, any = {}, k.const(k.i1, false)
      for i, row in ipairs(rows) do
        relative[i] = read_row(k.i32, p.local_target, u, row, -1) - (tile_column + first_column(p))
        any = any | k.ult(relative[i], H.width)
      end
      k.when(k.any(any), function()
        for i, row in ipairs(rows) do
          local column, list = relative[i], {}
          for j = 0, H.width // 8 - 1 do
            for e = 0, 1 do list[#list + 1] = acc[H.at(row.w, row.h, j, e)] end
          end
          local score = S.pick(list, k.lshr(column, 3) * 2 + (column & 1))
          k.when(k.ult(column, H.width) & k.eq(k.lshr(column, 1) & 3, H.lane & 3), function()
            k.store(p.zy, p.row_begin + u.row + H.row(row.w, row.h), score)
          end)
        end
      end)
    end

    local function raw_scores(acc, u)
      local held = {}
      for i, row in ipairs(rows) do
        local active, y = p.row_begin + u.row + H.row(row.w, row.h), {}
        for j = 0, H.width // 8 - 1 do
          for e = 0, 1 do y[#y + 1] = acc[H.at(row.w, row.h, j, e)] end
        end
        held[i] = {active = active, exists = k.lt(active, u.row_end), y = y}
      end
      return held
    end

    local function store_scores(acc, u, tile_column)
      if K.hold then K.hold(p, raw_scores(acc, u), tile_column + first_column(p), H.lane)
      else store_targets(acc, u, tile_column) end
      if K.raw then K.raw(p, raw_scores(acc, u), tile_column, H.lane) end
    end

    -- Makes a tile with columns beyond the vocabulary, or negative scales, one like all others: score times scale stays
    -- as it is to the bit, and beyond the vocabulary it is at most -2^101, which adds exactly nothing. For such a score
    -- to be finite, a scale below 2^-25 is first moved up, and the scores down; below 2^-125 it counts as 0.
    local function make_usual(acc, tile_column, scales)
      local made, up, factor, beyond = {}, {}, {}, {}
      for i, scale in ipairs(scales) do
        local size = k.abs(scale)
        local small = k.lt(size, 0x1p-25)
        up[i] = k.select(small, k.max(size * 0x1p100, 0x1p-25), size)
        factor[i] = k.select(small, k.const(k.f32, 0x1p-100), 1.0)
        factor[i] = k.select(k.lt(scale, 0.0), -factor[i], factor[i])
        factor[i] = k.select(k.lt(size, 0x1p-125), 0.0, factor[i])
        -- of up = 2^e·f: -2^(101-e)
        beyond[i] = -k.bitcast(k.f32, (355 << 23) - (k.bitcast(k.i32, up[i]) & 0x7f800000))
      end
      local left = p.vocab_valid - tile_column - H.column(0, 0)
      for j = 0, H.width // 8 - 1 do
        for e = 0, 1 do
          local valid = k.gt(left, j * 8 + e)
          for i, row in ipairs(rows) do
            local at = H.at(row.w, row.h, j, e)
            made[at] = k.select(valid, acc[at] * factor[i], beyond[i])
          end
        end
      end
      return {acc = made, scales = up}
    end

    local function place_of(u, tile_column) return {row = p.row_begin + u.row, column = tile_column} end

    -- What a row has of a tile, by block, and how to add one to its sum. All columns count, and its scale is not
    -- negative.
    local function row_of_tile(acc, u, tile_column, row, scale, sum, totals)
      local blocks, tops = {}, {}
      for block = 1, H.width // BLOCK do
        local y = {}
        for j = block * 8 - 8, block * 8 - 1 do
          for e = 0, 1 do y[#y + 1] = acc[H.at(row.w, row.h, j, e)] end
        end
        -- rounding is monotonic: the largest product is the product of the largest
        local top = y[1]
        for i = 2, #y do top = k.max(top, y[i]) end
        blocks[block], tops[block] = y, top * scale
      end
      if K.meet then
        local met = {}
        for i, y in ipairs(blocks) do
          met[i] = {column = tile_column + (i - 1) * BLOCK + H.column(0, 0), y = y, top = tops[i]}
        end
        K.meet(p, p.row_begin + u.row + H.row(row.w, row.h), u.row_end, scale, met, place_of(u, tile_column))
      end
      local see, mark = K.row and K.row(p, u, row), K.mark and K.mark(p)
      return {sum = sum, add = function(self, block)
        local exponentials
        self.sum, exponentials = S.accumulate(self.sum, blocks[block], scale, spec.bias, nil, tops[block], mark,
          totals and totals[block])
        if see then see(tile_column + (block - 1) * BLOCK, exponentials, self.sum.m, blocks[block]) end
      end}
    end

    -- The sums with a tile's part of all rows.
    local function reduce_rows(acc, u, tile_column, scales, sums, totals)
      -- Rows that take turns, so that no block of one waits for the other. ptxas spills less so, but more with a
      -- softcap.
      local out, together = {}, K.row and not spec.softcap and 2 or 1
      for first = 1, #rows, together do
        local turns = {}
        for i = first, first + together - 1 do
          turns[#turns + 1] = row_of_tile(acc, u, tile_column, rows[i], scales[i], sums[i], totals and totals[i])
        end
        for block = 1, H.width // BLOCK do
          for _, row in ipairs(turns) do row:add(block) end
        end
        for _, row in ipairs(turns) do out[#out + 1] = row.sum end
      end
      if K.met then K.met(p, place_of(u, tile_column)) end
      return out
    end

    local function finish(acc, unit, tile_column, sums)
      H.reread()
      local u = {row = unit.row, row_end = row_end(unit)}
      acc = H.add_bias(acc, p.bias, tile_column, p.vocab_valid - 1)
      store_scores(acc, u, tile_column)
      if spec.softcap then
        acc = S.cap_all(acc, p.cap_in)
        if K.meet then                                -- anew: cap_all has no register to keep them in
          H.reread()
          u.row_end = row_end(unit)
        end
      end
      local scales, unusual = {}, k.gt(tile_column + H.width, p.vocab_valid)
      for i, row in ipairs(rows) do
        scales[i] = read_row(k.f32, p.scale, u, row, 0.0)
        unusual = unusual | k.lt(scales[i], 0.0)
      end
      local function totals(real) return K.totals and K.totals(acc, rows, real) end
      local usual = k.branch(k.any(unusual), function()
        local made = make_usual(acc, tile_column, scales)
        made.totals = totals(p.vocab_valid - tile_column - H.column(0, 0))
        return made
      end, function() return {acc = acc, scales = scales, totals = totals()} end)
      return reduce_rows(usual.acc, u, tile_column, usual.scales, sums, usual.totals)
    end

    -- The four threads of a row merge the sums of the leaf: a thread ends with a part of the rows, and stores that.
    local function store_leaf(u, leaf, sums)
      H.reread()
      local held = {}
      for i, row in ipairs(rows) do held[i] = {sum = sums[i], row = H.row(row.w, row.h)} end
      for _, mask in ipairs {1, 2} do
        local upper, merged = k.ne(H.lane & mask, 0), {}
        for i = 1, (#held + 1) // 2 do
          local low, high = held[i], held[#held // 2 + i]
          local keeps, gives = S.select(upper, high.sum, low.sum), S.select(upper, low.sum, high.sum)
          merged[i] = {sum = S.merge(keeps, S.of_lane(gives, mask)), row = k.select(upper, high.row, low.row)}
        end
        held = merged
      end
      -- one of four rows, two of eight; of two or six some twice, the same bits
      for _, part in ipairs(held) do
        local sum, row = part.sum, u.row + part.row
        k.when(k.lt(H.lane & 3, #rows) & k.lt(p.row_begin + row, row_end(u)), function()
          local place = k.convert(k.i64, leaf + k.udiv(first_column(p), LEAF))
          local at = place * 3 * p.capacity + k.convert(k.i64, row)
          k.store(p.part, at, sum.m)
          k.store(p.part, at + p.capacity, sum.s)
          k.store(p.part, at + p.capacity * 2, sum.q or k.const(k.f32, 0.0))
          if K.sum then K.sum(p, p.row_begin + row, sum, place) end
        end)
      end
    end

    -- The tiles of one leaf from first to last. place(tile): where it stands among those of the unit.
    local function reduce_leaf(u, leaf, tiles, index, steps, place)
      local function over_tiles(state, body)
        return k.loop(k.const(k.i32, 0), tiles, 1, state, function(tile, now)
          H.take_turn()
          return body(H.advance(index, place(tile), steps), tile, now)
        end)
      end
      local function reduce()
        local empty = {}
        for i = 1, #rows do empty[i] = S.empty(spec.entropy, spec.parts.statistics) end
        local sums = over_tiles(empty, function(at, tile, now)
          local function add(acc, first, sum) return finish(acc, u, leaf * LEAF + tile * H.columns + first, sum) end
          return H.each_part(at, steps, "k", "k", now, add)
        end)
        k.when(k.gt(tiles, 0), function() store_leaf(u, leaf, sums) end)
      end
      if not SHORT then return reduce() end
      k.branch(has_rows(p, u, row_end(u)), reduce, function()
        over_tiles(nil, function(at) H.skip(at, steps) end)
      end)
    end

    return function(u, index, q)
      if LEAVES == 1 then
        reduce_leaf(u, u.leaf, u.first, index, q.steps, function(tile) return tile end)
      else
        local second = H.second()
        local mine = k.select(second, u.second, u.first)
        reduce_leaf(u, u.leaf + k.zext(k.i32, second), mine, index, q.steps, function(tile)
          return k.select(second, tile * 2 + 1, tile + k.min(tile, u.second))
        end)
        k.loop(mine, u.first, 1, nil, function()      -- turns of tiles that this leaf lacks
          H.take_turn()
          H.pass_turn()
        end)
      end
      return H.advance(index, u.first + u.second, q.steps)
    end
  end

  H.kernel(entry .. "_map", {problem = problem, unit_at = unit_at, produce = produce, consume = consume,
                             finish = K.finish, aside = H.aside and K.aside, unit_columns = LEAF})
end
