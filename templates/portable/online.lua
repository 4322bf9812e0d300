-- online.lua (portable): scores of a row panel against a group of columns, reduced as they appear: forward with any
-- parts.
--
--   hidden (n,D), weight (V,D) -> part[group][m|s|q][row], zy[row]
--   m = max t,  s = Σ 2^(t-m),  q = Σ (t-m)·2^(t-m)        over the columns of the group, in log2 units
--
-- source: online softmax, arXiv:1805.02867, with the shift inside q so that the entropy does not cancel.
--
-- Canonical order. The vocabulary is split into leaves of 768 columns. One warp owns a leaf of its rows from first to
-- last column: each thread takes its columns in blocks of 64, moving its maximum once a block; the four threads of a
-- row merge; the four leaves of a group fold left to right. Tiles, grid, N and position in the batch do not enter, so a
-- row's bits do not depend on them. The 4 warps along N work on the 4 leaves of the group side by side: tile t of the
-- CTA is block t of every leaf.
--
-- hooks, if given: function(M) -> K, of which each may be absent:
--   K.see(p, active, count, block_column, exponentials, m, valid, y)   behind each block of each row as it is summed:
--     2^(t-m) of its columns, m the maximum so far; of active row `active`, which exists below `count`; valid(j): is
--     column j real, false where all are; y: with a softcap their tanh. Columns of a launch begin at p.column_begin.
--   K.mark(p) -> mark   the exponentials that K.see gets: mark of score.lua's accumulate
--   K.meet(p, active, count, scale, blocks, tile)   before that: t = scale·y, and of each block, here one, {column, y,
--     valid, top}: column of y[1], the others of which stand as in an accumulator of engine.lua; the largest t. tile: {row,
--     column}, the active row and the warp's column at which it begins; all lanes together
--   K.met(p, tile)   behind the last row of a tile
--   K.sum(p, active, sum, group)   behind the last tile of a group: the sum {m, s} of its columns, of an active row
--   K.hold(p, rows, column, lane)   in the place of storing the targets' scores: raw scores of a tile from `column` on,
--     of each row {active, exists, y}, y as an accumulator has them
--   K.raw(p, rows, column, lane)   the same beside that; column: of the launch
--   K.by_columns   columns of a launch begin at p.column_begin

local LEAF, LEAVES, GROUP = k.abi.LEAF_COLUMNS, k.abi.GROUP_LEAVES, k.abi.GROUP_COLUMNS
local BLOCK = 64

return function(k, spec, entry, hooks)
  local M = k.import "engine" (k, spec)
  local K = hooks and hooks(M) or {}
  local H = k.import "head" (k, spec, M)
  local S = k.import "score" (k)

  -- In the vocabulary, of the columns of the launch.
  local function vocab_begin(p) return K.by_columns and p.column_begin or k.const(k.i32, 0) end

  -- Row panel and group of a CTA. The last group, where leaves may be empty and CTAs take half the time, comes last: it
  -- fills multiprocessors up.
  local function place_of(p, id)
    local full = p.groups - 1
    local panel, group = M.raster(id, p.bands, k.max(full, 1))
    local is_last, behind = k.ge(id, full * p.bands), id - full * p.bands
    return k.select(is_last, behind, panel), k.select(is_last, full, group)
  end

  local function body(p)
    M.begin(k.tid())
    local panel, group = place_of(p, k.ctaid())
    local count = k.min(k.load(k.i32, p.count, 0), p.row_end)
    local first_row = p.row_begin + panel * M.rows
    k.exit_if(k.ge(first_row, count))
    local first_column = group * GROUP

    -- Leaf 0 is the fullest: it decides how many blocks the group has.
    local columns = k.min(p.vocab_valid - first_column, LEAF)
    local blocks = (columns + (BLOCK - 1)) // BLOCK
    local steps = H.steps(p)

    local hidden = H.hidden(p, first_row, count)
    -- Tile row leaf*64 + r is column r of the leaf's block.
    local weight = H.weight(p, function(row) return first_column + k.lshr(row, 6) * LEAF + (row & (BLOCK - 1)) end,
      p.vocab_valid, function(rows) return rows // BLOCK * LEAF + rows % BLOCK end, BLOCK)

    -- The rows of this thread: 2 for each 16-row accumulator tile. Target and scale are read anew in every epilogue:
    -- the main loop has no register to keep them in.
    local function thread_rows()
      local rows = {}
      for mi = 0, M.mi - 1 do
        for h = 0, 1 do
          local tile_row = M.row(mi, h)
          rows[#rows + 1] = {tile_row = tile_row, active = first_row + tile_row, mi = mi + 1, h = h}
        end
      end
      return rows
    end
    local rows = thread_rows()
    local function read_row(type, ptr, row, default)
      local valid = k.lt(row.active, count)
      return k.select(valid, k.load(type, ptr, k.select(valid, row.active, p.row_begin)), default)
    end

    local leaf_column = first_column + M.warp_n * LEAF

    -- One CTA of the grid meets a row's target: it stores the raw score.
    local function store_targets(acc, block_column)
      local relative, hit = {}, nil
      for i, row in ipairs(rows) do
        relative[i] = read_row(k.i32, p.local_target, row, -1) - (block_column + vocab_begin(p))
        local here = k.ult(relative[i], BLOCK)
        hit = hit and (hit | here) or here
      end
      k.when(k.any(hit), function()
        for i, row in ipairs(rows) do
          for ni = 0, M.ni - 1 do
            for e = 0, 1 do
              k.when(k.eq(relative[i], M.column(ni, e)), function()
                k.store(p.zy, row.active, acc[row.mi][ni + 1][row.h * 2 + e + 1])
              end)
            end
          end
        end
      end)
    end

    local function raw_scores(acc)
      local held = {}
      for i, row in ipairs(rows) do
        local y = {}
        for ni = 0, M.ni - 1 do
          for e = 0, 1 do y[#y + 1] = acc[row.mi][ni + 1][row.h * 2 + e + 1] end
        end
        held[i] = {active = row.active, exists = k.lt(row.active, count), y = y}
      end
      return held
    end

    local function store_scores(acc, block_column)
      if K.hold then K.hold(p, raw_scores(acc), block_column + vocab_begin(p), M.lane)
      else store_targets(acc, block_column) end
      if K.raw then K.raw(p, raw_scores(acc), block_column, M.lane) end
    end

    -- The tanh of all scores of a tile.
    local function cap(acc)
      local list, out = {}, {}
      for mi = 1, M.mi do
        for ni = 1, M.ni do table.move(acc[mi][ni], 1, 4, #list + 1, list) end
      end
      list = S.cap_all(list, p.cap_in)
      for mi = 1, M.mi do
        out[mi] = {}
        for ni = 1, M.ni do
          local before = ((mi - 1) * M.ni + ni - 1) * 4
          out[mi][ni] = table.move(list, before + 1, before + 4, 1, {})
        end
      end
      return out
    end

    local function reduce(acc, block_column, sums, whole)
      local out, mark = {}, K.mark and K.mark(p)
      for i, row in ipairs(rows) do
        local y = {}
        for ni = 0, M.ni - 1 do
          for e = 0, 1 do
            y[#y + 1] = acc[row.mi][ni + 1][row.h * 2 + e + 1]
          end
        end
        local valid = not whole and function(j)
          return k.lt(block_column + M.column((j - 1) // 2, (j - 1) % 2), p.vocab_valid)
        end
        local scale = read_row(k.f32, p.scale, row, 0.0)
        local top = K.meet and S.top(y, scale, valid)
        if K.meet then
          local block = {column = block_column + M.column(0, 0), y = y, valid = valid, top = top}
          K.meet(p, row.active, count, scale, {block}, {row = first_row, column = block_column})
        end
        local exponentials
        local total = spec.parts.statistics and S.total(y, valid)
        out[i], exponentials = S.accumulate(sums[i], y, scale, spec.bias, valid, top, mark, total)
        if K.see then K.see(p, row.active, count, block_column, exponentials, out[i].m, valid, y) end
      end
      if K.met then K.met(p, {row = first_row, column = block_column}) end
      return out
    end

    local function finish(tile, acc, sums)
      local block_column = leaf_column + tile * BLOCK
      acc = H.add_bias(p, acc, block_column, p.vocab_valid)
      store_scores(acc, block_column)
      if spec.softcap then acc = cap(acc) end
      return k.branch(k.le(block_column + BLOCK, p.vocab_valid),
        function() return reduce(acc, block_column, sums, true) end,
        function() return reduce(acc, block_column, sums, false) end)
    end

    local start = {}
    for i = 1, #rows do start[i] = S.empty(spec.entropy, spec.parts.statistics) end
    local sums = M.stream(hidden, weight, blocks, steps, start, finish,
      function(tile) return k.any(k.ge(leaf_column + tile * BLOCK, p.vocab_valid)) end)

    panel, group = place_of(p, k.reread_ctaid())
    first_row, first_column = p.row_begin + panel * M.rows, group * GROUP

    -- Four threads share a row: merge them, then leave the leaf's sums in shared memory.
    local words = {"m", "s"}
    if spec.entropy then words[3] = "q" end
    if spec.parts.statistics then table.move({"r", "z"}, 1, 2, #words + 1, words) end
    local shared = k.shared()
    local function slot(leaf, word, row) return shared + ((leaf * #words + word - 1) * M.rows + row) * 4 end
    for i, row in ipairs(thread_rows()) do
      local sum = S.merge_lanes(sums[i])
      k.when(k.eq(M.lane & 3, 0), function()
        for word, name in ipairs(words) do k.shared_store(slot(M.warp_n, word, row.tile_row), sum[name]) end
      end)
    end
    k.barrier()

    -- Fold the leaves that exist, left to right; one thread a row.
    local row = M.tid
    k.when(k.lt(row, M.rows) & k.lt(first_row + row, count), function()
      local function leaf_sum(leaf)
        local sum = {}
        for word, name in ipairs(words) do sum[name] = k.shared_load(k.f32, slot(leaf, word, row)) end
        return sum
      end
      local sum = leaf_sum(0)
      for leaf = 1, LEAVES - 1 do
        sum = k.branch(k.lt(first_column + leaf * LEAF, p.vocab_valid),
          function() return S.merge(sum, leaf_sum(leaf)) end,
          function() return sum end)
      end
      local place = k.convert(k.i64, group + k.udiv(vocab_begin(p), GROUP))
      local base = place * 3 * p.capacity + k.convert(k.i64, first_row + row - p.row_begin)
      k.store(p.part, base, sum.m)
      k.store(p.part, base + p.capacity, sum.s)
      k.store(p.part, base + p.capacity * 2, sum.q or k.const(k.f32, 0.0))
      if K.sum then K.sum(p, first_row + row, sum, place) end
    end)
  end

  M.tile.unit_columns = GROUP
  k.kernel {
    entry = entry, threads = M.threads, min_ctas = 1, body = body,
    shared_bytes = M.shared_bytes, tile = M.tile,
  }
end
