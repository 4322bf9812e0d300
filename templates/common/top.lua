-- top.lua: what stands before, between and behind part top: see runtime/kernel/abi.h for each entry.
--
--   top_target   zy = h·w_y + b (own_scores.lua)
--   top_begin    empty lists; the least score above the target's
--   top_floor    the best K of what a row has listed; the floor rises above the K-th
--   top_redo     lists of rows that overflowed, over the whole vocabulary (top_redo.lua)
--   top_listed   lists of the columns that rows list
--   top_finish   ids, logprobs, the mass of all others, rank
--   top_others   the same of rows that are not computed
--
-- A column of score -inf is in no list: behind the last column above it a row's K places stay empty.
-- The K-th best of some columns is a lower bound of the row's: what is not above it loses against those K, which have
-- lower ids. So of a row's columns those are in the end listed that a sort by falling score, then rising id, has first.

local THREADS, WARP = 256, 32
local WARPS = THREADS // 32
local LN2 = 0.6931471805599453

return function(k, spec)
  local S, F, B = k.import "score" (k), k.import "math64" (k), k.import "best" (k)
  local id_type = spec.target_dtype == "int64" and k.i64 or k.i32
  local MOST, PLACES = k.abi.TOP_MOST, k.abi.TOP_PLACES_MOST
  local nan, infinity = 0.0 / 0.0, 1.0 / 0.0
  local f64 = function(v) return k.convert(k.f64, v) end
  local f32 = function(v) return k.convert(k.f32, v) end
  local i64 = function(v) return k.convert(k.i64, v) end
  local function number(v) return k.const(k.f32, v) end
  local function integer(v) return k.const(k.i32, v) end

  -- Active rows that there are of [row_begin, row_end), less row_begin.
  local function rows_of(p) return k.min(k.load(k.i32, p.count, 0), p.row_end) - p.row_begin end

  ------------------------------------------------------------------------------------------------ top_begin
  -- The least score above the target's.
  local function mark_of(p, a)
    local x = k.load(k.f32, p.zy, a)
    local y = k.branch(k.ne(p.capped, 0), function() return S.cap(x, p.cap_in) end, function() return x end)
    return B.above(y * k.load(k.f32, p.scale, a))
  end

  -- That above the target's of another shard; NaN of a row that has none.
  local function other_mark(p, a)
    return k.branch(k.is_null(p.target_score), function() return number(nan) end, function()
      return B.above(k.load(k.f32, p.target_score, k.load(k.i32, p.index, a)))
    end)
  end

  local function top_begin(p)
    local row = k.ctaid() * THREADS + k.tid()
    k.when(k.eq(row, 0), function() k.store(p.top_lost, 0, integer(0)) end)
    k.exit_if(k.ge(row, rows_of(p)))
    local a = p.row_begin + row
    local is_own = k.ne(p.ranks, 0) & k.ge(k.load(k.i32, p.local_target, a), 0)
    local mark = k.branch(is_own, function() return mark_of(p, a) end, function() return other_mark(p, a) end)
    local floor = k.select(k.gt(p.best, 0), number(B.LOWEST), nan)
    k.store(p.top_mark, row, mark)
    k.store(p.top_floor, row, floor)
    k.store(p.top_low, row, k.min(floor, mark))
    k.store(p.top_count, row, integer(0))
    k.store(p.top_above, row, integer(0))
  end

  ------------------------------------------------------------------------------------- a row's list, one warp
  -- The list's scores as keys in shared memory; columns stay where they are.
  local function open_list(p, row, length)
    local list = i64(row) * i64(p.top_places)
    local keys = k.shared()
    k.loop(k.lane(), length, WARP, nil, function(i)
      local at = list + i64(i)
      local is_column = k.ge(k.load(k.i32, p.top_column, at), 0)
      k.shared_store(keys + i * 4, k.select(is_column, B.key(k.load(k.f32, p.top_score, at)), 0))
    end)
    k.barrier()
    return {
      key_at = function(i) return k.shared_load(k.i32, keys + i * 4) end,
      column_at = function(i) return k.load(k.i32, p.top_column, list + i64(i)) end,
      at = function(i) return list + i64(i) end,
    }
  end

  ------------------------------------------------------------------------------------------------ top_floor
  local function lose(p, row)
    k.when(k.eq(k.lane(), 0), function()
      k.store(p.top_lost, k.atomic_add(p.top_lost, 0, integer(1)) + 1, row)
      k.store(p.top_floor, row, number(nan))
      k.store(p.top_low, row, k.load(k.f32, p.top_mark, row))
    end)
  end

  local function raise(p, row, length)
    local list = open_list(p, row, length)
    local bound = B.bound(length, p.best, list.key_at, list.column_at)
    local kept = B.compact(length, bound, list.key_at, list.column_at, function(place, key, column)
      k.store(p.top_column, list.at(place), column)
      k.store(p.top_score, list.at(place), B.score(key))
    end)
    k.when(k.eq(k.lane(), 0), function()
      local floor = B.above(B.score(bound.key))
      k.store(p.top_count, row, kept)
      k.store(p.top_floor, row, floor)
      k.store(p.top_low, row, k.min(floor, k.load(k.f32, p.top_mark, row)))
    end)
  end

  local function top_floor(p)
    local row = k.ctaid()
    k.exit_if(k.ge(row, rows_of(p)))
    local found, floor = k.load(k.i32, p.top_count, row), k.load(k.f32, p.top_floor, row)
    k.when(k.ne(p.is_first, 0) & k.eq(k.lane(), 0), function() k.store(p.top_above, row, integer(0)) end)
    k.when(~k.is_nan(floor), function()
      k.when(k.gt(found, p.top_places), function() lose(p, row) end)
      local is_raised = k.le(found, p.top_places) & k.ge(found, p.best) & k.eq(p.is_last, 0)
      k.when(is_raised, function() raise(p, row, found) end)
    end)
  end

  ----------------------------------------------------------------------------------------------- top_finish
  local function store_if(ptr, at, value)
    k.when(~k.is_null(ptr), function() k.store(ptr, at, value) end)
  end

  -- Place j of a row's K.
  local function store_place(p, row, j, id, logprob)
    local at = i64(row) * i64(p.best) + i64(j)
    k.when(~k.is_null(p.top_ids), function() k.store(p.top_ids, at, k.convert(id_type, id)) end)
    store_if(p.top_logprob, at, logprob)
  end

  -- What a row's scores are held against: {m, log2 s}, or of a shard of a larger vocabulary nothing; and whether the row
  -- is sound.
  local function reference_of(p, row)
    return k.branch(k.is_null(p.stats), function()
      local v = k.load_vector(k.f32, 4, p.partial, row)
      local is_bad = k.is_nan(v[1]) | k.is_nan(v[2]) | k.gt(v[1], S.limit)
      return {m = number(0.0), log_s = number(0.0), is_bad = is_bad}
    end, function()
      local v = k.load_vector(k.f32, 4, p.stats, row)
      return {m = v[1], log_s = v[2], is_bad = k.is_nan(v[1]) | k.is_nan(v[2])}
    end)
  end

  -- Shared memory: keys of the list; then the best K by place, their keys and columns.
  local KEY_AT, COLUMN_AT = PLACES * 4, (PLACES + MOST) * 4
  local FINISH_BYTES = (PLACES + 2 * MOST) * 4

  -- The best K of the list into shared memory, sorted; returns how many.
  local function sort(p, row, length)
    local list, shared = open_list(p, row, length), k.shared()
    local bound = B.bound(length, p.best, list.key_at, list.column_at)
    local kept = B.compact(length, bound, list.key_at, list.column_at, function(place, key, column)
      k.shared_store(shared + KEY_AT + place * 4, key)
      k.shared_store(shared + COLUMN_AT + place * 4, column)
    end)
    k.barrier()
    local function key_at(i) return k.shared_load(k.i32, shared + KEY_AT + i * 4) end
    local function column_at(i) return k.shared_load(k.i32, shared + COLUMN_AT + i * 4) end
    local mine = {}
    for part = 0, MOST // WARP - 1 do
      local i = k.lane() + part * WARP
      local exists = k.lt(i, kept)
      local at = k.select(exists, i, 0)
      local key, column = key_at(at), column_at(at)
      local stop = k.select(exists, kept, 0)
      mine[#mine + 1] = {exists = exists, key = key, column = column, place = B.rank(stop, key, column, key_at, column_at)}
    end
    k.barrier()
    for _, entry in ipairs(mine) do
      k.when(entry.exists, function()
        k.shared_store(shared + KEY_AT + entry.place * 4, entry.key)
        k.shared_store(shared + COLUMN_AT + entry.place * 4, entry.column)
      end)
    end
    k.barrier()
    return kept, key_at, column_at
  end

  local function finish_best(p, row, i, reference)
    local length = k.min(k.load(k.i32, p.top_count, row), p.top_places)
    local kept, key_at, column_at = sort(p, row, length)
    local shift = f64(reference.m) + f64(reference.log_s)
    local masses = k.loop(k.lane(), p.best, WARP, number(0.0), function(j, sum)
      local exists = k.lt(j, kept)
      local at = k.select(exists, j, 0)
      local t, id = B.score(key_at(at)), i64(column_at(at)) + p.vocab_offset
      local is_in = exists & ~reference.is_bad
      local logprob = f32((f64(t) - shift) * LN2)
      logprob = k.select(exists, logprob, -infinity)
      logprob = k.select(~k.is_null(p.stats) & k.gt(logprob, 0.0), 0.0, logprob)
      store_place(p, i, j, k.select(is_in, id, -1), k.select(reference.is_bad, nan, logprob))
      return sum + k.select(is_in, k.exp2(k.max(t - reference.m, S.lowest)), 0.0)
    end)
    for _, mask in ipairs {16, 8, 4, 2, 1} do masses = masses + k.shuffle_xor(masses, mask) end
    k.when(k.eq(k.lane(), 0) & ~k.is_null(p.top_rest), function()
      local part = f64(masses) * F.exp(f64(reference.log_s) * -LN2)
      local are_all = k.lt(kept, p.best) | k.ge(kept, p.vocab_valid)
      local rest = k.select(are_all | k.ge(part, 1.0), k.const(k.f64, 0.0), 1.0 - part)
      k.store(p.top_rest, i, k.select(reference.is_bad, nan, f32(rest)))
    end)
  end

  local function top_finish(p)
    local row = k.ctaid()
    k.exit_if(k.ge(row, rows_of(p)))
    local a = p.row_begin + row
    local i = k.load(k.i32, p.index, a)
    local reference = reference_of(p, i)
    k.when(k.gt(p.best, 0), function() finish_best(p, row, i, reference) end)
    k.when(k.eq(k.lane(), 0) & ~k.is_null(p.rank), function()
      local is_ranked = ~reference.is_bad & ~k.is_nan(k.load(k.f32, p.top_mark, row))
      k.store(p.rank, i, k.select(is_ranked, k.load(k.i32, p.top_above, row), -1))
    end)
  end

  ----------------------------------------------------------------------------------------------- top_others
  local function top_others(p)
    local row = i64(k.ctaid()) * WARPS + i64(k.warp())
    k.exit_if(k.ge(row, p.n))
    local class = k.convert(k.i32, k.load(k.i8, p.row_class, row))
    k.exit_if(k.eq(class, k.abi.ROW_ACTIVE))
    local value = k.select(k.eq(class, k.abi.ROW_BAD), number(nan), 0.0)
    local i = k.convert(k.i32, row)
    k.loop(k.lane(), p.best, WARP, nil, function(j) store_place(p, i, j, k.const(k.i64, -1), value) end)
    k.when(k.eq(k.lane(), 0), function()
      store_if(p.top_rest, i, value)
      store_if(p.rank, i, integer(-1))
    end)
  end

  local function entry(name, threads, shared_bytes, body)
    k.kernel {entry = name, threads = threads, shared_bytes = shared_bytes, body = body}
  end
  k.import "own_scores" (k, spec, "top_target")
  entry("top_begin", THREADS, 0, top_begin)
  entry("top_floor", WARP, PLACES * 4, top_floor)
  k.import "top_redo" (k, spec)
  entry("top_finish", WARP, FINISH_BYTES, top_finish)
  entry("top_others", THREADS, 0, top_others)
end
