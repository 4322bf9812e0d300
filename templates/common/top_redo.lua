-- top_redo.lua: the best K of columns in any number and order: entries top_redo and top_listed of runtime/kernel/abi.h.
--
--   top_redo     h·w + b of 8 rows whose list overflowed and a segment of the vocabulary -> the K best of each
--   top_listed   t of a row's listed columns -> the K best of them
--
-- A CTA multiplies 128 columns at a time, 16 a warp, by 8 rows (dots.lua). Then each warp has one row: what is not below
-- its K-th best so far goes to a buffer in shared memory, of which the best K stay when it might not hold the next 128.
-- So nothing overflows; it is slow, and rows are seldom lost.

local WARPS, ROWS, EACH = 8, 8, 16
local TILE = WARPS * EACH
local BUFFER = 512                    -- entries of a row: K and at least two tiles
local THREADS = WARPS * 32
local MIN_CTAS = 2                    -- for more ptxas gives up that loads are under way together

return function(k, spec)
  local S, B, D = k.import "score" (k), k.import "best" (k), k.import "dots" (k, spec)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  local infinity = 1.0 / 0.0
  local i64 = function(v) return k.convert(k.i64, v) end
  local SCORES, KEYS = 0, ROWS * TILE * 4
  local COLUMNS = KEYS + ROWS * BUFFER * 4
  local BYTES = COLUMNS + ROWS * BUFFER * 4
  assert(k.abi.TOP_MOST + 2 * TILE <= BUFFER, "a buffer takes a tile behind the best")

  local function score_at(row, i) return k.shared() + SCORES + (row * TILE + i) * 4 end

  -- Lost row j of the group, less row_begin; behind the last that one again.
  local function lost_row(p, group, j)
    return k.load(k.i32, p.top_lost, 1 + k.min(group.first + j, group.lost - 1))
  end

  -- t of 16 columns of this warp and the group's rows, into shared memory.
  local function multiply(p, group, tile)
    local quad, pair = k.lshr(k.lane(), 2), (k.lane() & 3) * 2
    local begin = tile + k.warp() * EACH
    local function column(i) return k.min(begin + i, p.vocab_valid - 1) end
    local a = p.row_begin + lost_row(p, group, quad)
    local acc = D.scores(p, function() return column(quad) end, function() return column(quad + 8) end,
      function() return k.load(k.i32, p.index, a) end, a)
    for half = 0, 1 do
      local i = quad + half * 8
      local bias = k.branch(k.is_null(p.bias), function() return k.const(k.f32, -0.0) end,
        function() return k.convert(k.f32, k.load(element, p.bias, column(i))) end)
      for e = 0, 1 do
        local x = acc[half * 2 + e + 1] + bias
        local y = k.branch(k.ne(p.capped, 0), function() return S.cap(x, p.cap_in) end, function() return x end)
        local scale = k.load(k.f32, p.scale, p.row_begin + lost_row(p, group, pair + e))
        k.shared_store(score_at(pair + e, k.warp() * EACH + i), y * scale)
      end
    end
  end

  -- The buffer of this warp's row.
  local function key_place(i) return k.shared() + KEYS + (k.warp() * BUFFER + i) * 4 end
  local function column_place(i) return k.shared() + COLUMNS + (k.warp() * BUFFER + i) * 4 end
  local function key_at(i) return k.shared_load(k.i32, key_place(i)) end
  local function column_at(i) return k.shared_load(k.i32, column_place(i)) end
  local function put(place, key, column)
    k.shared_store(key_place(place), key)
    k.shared_store(column_place(place), column)
  end

  -- The best K of the buffer come first; scores from now on are at least `floor`.
  local function settle(p, buffer)
    return k.branch(k.ge(buffer.length, p.best), function()
      local bound = B.bound(buffer.length, p.best, key_at, column_at)
      local kept = B.compact(buffer.length, bound, key_at, column_at, put, true)
      return {length = kept, floor = B.above(B.score(bound.key))}
    end, function() return buffer end)
  end

  -- With a column of each lane, where it exists and is not below the floor.
  local function add(buffer, t, column, exists)
    local votes = k.ballot(exists & k.ge(t, buffer.floor))
    local before = votes & ((k.const(k.i32, 1) << k.lane()) - 1)
    k.when(exists & k.ge(t, buffer.floor), function() put(buffer.length + k.popcount(before), B.key(t), column) end)
    return {length = buffer.length + k.popcount(votes), floor = buffer.floor}
  end

  local function collect(p, tile, buffer)
    for part = 0, TILE // 32 - 1 do
      local i = k.lane() + part * 32
      local t, column = k.shared_load(k.f32, score_at(k.warp(), i)), tile + i
      buffer = add(buffer, t, column, k.lt(column, p.vocab_valid))
    end
    return buffer
  end

  local function empty() return {length = k.const(k.i32, 0), floor = k.const(k.f32, B.LOWEST)} end

  -- With room for so many more.
  local function with_room(p, buffer, more)
    return k.branch(k.gt(buffer.length, BUFFER - more), function() return settle(p, buffer) end,
      function() return buffer end)
  end

  -- What a warp has found of its row, into its places of the row's list.
  local function store_list(p, group, segment, buffer)
    k.when(k.lt(group.first + k.warp(), group.lost), function()
      local row = lost_row(p, group, k.warp())
      local list = i64(row) * i64(p.top_places) + i64(segment * p.best)
      k.loop(k.lane(), p.best, 32, nil, function(j)
        local exists = k.lt(j, buffer.length)
        local at = k.select(exists, j, 0)
        k.store(p.top_column, list + i64(j), k.select(exists, column_at(at), -1))
        k.store(p.top_score, list + i64(j), k.select(exists, B.score(key_at(at)), -infinity))
      end)
      k.when(k.eq(segment, 0) & k.eq(k.lane(), 0), function()
        k.store(p.top_count, row, p.segments * p.best)
      end)
    end)
  end

  local function top_redo(p)
    local lost = k.load(k.i32, p.top_lost, 0)
    local columns = (p.vocab_valid + (p.segments * TILE - 1)) // (p.segments * TILE) * TILE -- of a segment
    local items = (lost + (ROWS - 1)) // ROWS * p.segments
    k.loop(k.ctaid(), items, k.nctaid(), nil, function(item)
      local segment = item % p.segments
      local group = {first = item // p.segments * ROWS, lost = lost}
      local begin = segment * columns
      local found = k.loop(begin, k.min(begin + columns, p.vocab_valid), TILE, empty(), function(tile, buffer)
        multiply(p, group, tile)
        k.barrier()
        buffer = collect(p, tile, with_room(p, buffer, TILE))
        k.barrier()
        return buffer
      end)
      found = settle(p, found)
      k.barrier()
      store_list(p, group, segment, found)
      k.barrier()
    end)
  end

  ------------------------------------------------------------------------------------------------ top_listed
  -- Adds the columns of a list; above: how many are not below the mark
  local function collect_list(p, list, start, now)
    local buffer = with_room(p, {length = now.length, floor = now.floor}, 32)
    k.warp_sync()
    local i = start + k.lane()
    local exists = k.lt(i, list.length)
    local at = i64(list.first + k.select(exists, i, 0))
    local t = k.load(k.f32, p.list_score, at) * list.scale
    buffer = add(buffer, t, k.load(k.i32, p.list_column, at), exists & k.gt(p.best, 0))
    k.warp_sync()
    return {length = buffer.length, floor = buffer.floor,
            above = now.above + k.popcount(k.ballot(exists & k.ge(t, list.mark)))}
  end

  local function top_listed(p)
    local row = k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(row, k.min(k.load(k.i32, p.count, 0), p.row_end) - p.row_begin))
    local a = p.row_begin + row
    local list = {length = k.load(k.i32, p.list_length, a), scale = k.load(k.f32, p.scale, a),
                  mark = k.load(k.f32, p.top_mark, row),
                  first = k.convert(k.i32, k.load(k.i64, p.offsets, k.load(k.i32, p.index, a)))}
    local start = empty()
    start.above = k.const(k.i32, 0)
    local found = k.loop(k.const(k.i32, 0), list.length, 32, start, function(i, now)
      return collect_list(p, list, i, now)
    end)
    local buffer = settle(p, {length = found.length, floor = found.floor})
    k.warp_sync()
    local to = i64(row) * i64(p.top_places)
    k.loop(k.lane(), buffer.length, 32, nil, function(j)
      k.store(p.top_column, to + i64(j), column_at(j))
      k.store(p.top_score, to + i64(j), B.score(key_at(j)))
    end)
    k.when(k.eq(k.lane(), 0), function()
      k.store(p.top_count, row, buffer.length)
      k.store(p.top_above, row, found.above)
    end)
  end

  k.kernel {entry = "top_listed", threads = THREADS, min_ctas = MIN_CTAS, shared_bytes = BYTES, body = top_listed}
  k.kernel {entry = "top_redo", threads = THREADS, min_ctas = MIN_CTAS, shared_bytes = BYTES, body = top_redo}
end
