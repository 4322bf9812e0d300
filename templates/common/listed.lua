-- listed.lua: of each row the columns that it lists: see runtime/kernel/abi.h for each entry.
--
--   list_check     counts rows whose offsets are bad
--   list_sort      a row's columns, ascending, each once
--   list_scores    their scores (listed_scores.lua)
--   list_reduce    s = Σ 2^u and q = Σ u·2^u, u = t - m, below one maximum m
--   list_dz        dz = 2^u·(A + B·u), at the target dz_y, times 1 - tanh² with softcap
--   list_hidden    dh = Σ dz·w
--   list_adapter   G = Σ dz·b, and with it dh = Σ dz·w + s·G·A, whose last term is there already
--
-- list_sort sets a bit of shared memory for each id, WINDOW columns at a time, and reads them back in order: any
-- length, order and number of duplicates takes the same way. Each thread reads neighbouring words, an odd number of
-- them, so that threads do not meet in a bank.

local THREADS, HIDDEN_THREADS = 256, 128
local HIDDEN_MIN_CTAS = 8                           -- for more ptxas gives up that loads are under way together
local WARPS = THREADS // 32
local WINDOW_BYTES = 32 << 10                       -- one window holds vocabularies of up to 262144 columns
local WINDOW = WINDOW_BYTES * 8
local SCAN_AT, FAULTS_AT = WINDOW_BYTES, WINDOW_BYTES + 128
local OUTSIDE, FOUND = 1, 2                         -- bits of what a row's ids are
local TOGETHER = 8                                  -- rows of weight that a thread of list_hidden loads at a time

return function(k, spec)
  local S = k.import "score" (k)
  local scan = k.import "scan" (k).over_cta
  local W, B = k.import "weight" (k, spec, spec.wide_weight), k.import "weight" (k, spec)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  local bytes = spec.dtype == "fp32" and 4 or 2
  local id_type = spec.target_dtype == "int64" and k.i64 or k.i32
  local nan = 0.0 / 0.0
  local i32 = function(v) return k.convert(k.i32, v) end
  local i64 = function(v) return k.convert(k.i64, v) end
  local zero = function(type) return k.const(type, 0) end

  local function list_check(p)
    local row = i64(k.ctaid()) * THREADS + i64(k.tid())
    k.exit_if(k.ge(row, p.n))
    local first, last = k.load(k.i64, p.offsets, row), k.load(k.i64, p.offsets, row + 1)
    local is_good = k.ge(first, 0) & k.le(first, last) & k.le(last, p.list_count)
    k.when(~is_good, function() k.atomic_add(p.list_state, 0, k.const(k.i32, 1)) end)
  end

  ------------------------------------------------------------------------------------------------ list_sort
  local function id_at(p, e) return i64(k.load(id_type, p.ids, e, {const = true})) end

  -- What holds of any of a row's ids. Uses shared memory at FAULTS_AT. An id outside may pass for the target, as the
  -- difference wraps; then the row is bad anyhow.
  local function inspect(p, row)
    local bits = k.loop(row.first + i64(k.tid()), row.last, THREADS, zero(k.i32), function(e, bits)
      local id = id_at(p, e)
      local is_outside = k.lt(id, 0) | k.ge(id, p.vocab_total)
      local is_target = k.eq(id - p.vocab_offset, i64(row.target))
      return bits | k.select(is_outside, k.const(k.i32, OUTSIDE), 0) | k.select(is_target, k.const(k.i32, FOUND), 0)
    end)
    local word = k.shared() + FAULTS_AT
    k.when(k.eq(k.tid(), 0), function() k.shared_store(word, zero(k.i32)) end)
    k.barrier()
    k.when(k.ne(bits, 0), function() k.shared_atomic_or(word, bits) end)
    k.barrier()
    return k.shared_load(k.i32, word)
  end

  -- The window of `columns` columns from `low` (i64) on.
  local function set_bits(p, row, low, columns)
    local bitmap = k.shared()
    k.loop(k.tid(), k.lshr(columns + 31, 5), THREADS, nil, function(i) k.shared_store(bitmap + i * 4, zero(k.i32)) end)
    k.barrier()
    k.loop(row.first + i64(k.tid()), row.last, THREADS, nil, function(e)
      local here = id_at(p, e) - p.vocab_offset - low
      k.when(k.ge(here, 0) & k.lt(here, i64(columns)), function()
        local bit = i32(here)
        k.shared_atomic_or(bitmap + k.lshr(bit, 5) * 4, k.const(k.i32, 1) << (bit & 31))
      end)
    end)
    k.barrier()
  end

  local function store_column(p, row, e, column)
    k.store(p.list_column, e, column)
    k.when(~k.is_null(p.list_row), function() k.store(p.list_row, e, row.a) end)
    k.when(k.eq(column, row.target), function() k.store(p.list_target, row.a, e) end)
  end

  -- Stores the window's columns from entry `first` on; returns how many there are.
  local function read_bits(p, row, low, columns, first)
    local words = k.lshr(columns + 31, 5)
    local each = (words + (THREADS - 1)) // THREADS | 1
    local mine = k.tid() * each
    local stop = k.min(mine + each, words)
    local function word_at(i) return k.shared_load(k.i32, k.shared() + i * 4) end
    local number = k.loop(mine, stop, 1, zero(k.i32), function(i, sum) return sum + k.popcount(word_at(i)) end)
    local before, found = scan(number, k.shared() + SCAN_AT, WARPS)
    k.loop(mine, stop, 1, first + before, function(i, place)
      local column = i32(low) + i * 32
      local state = {rest = word_at(i), place = place}
      return k.while_(state, function(now) return k.ne(now.rest, 0) end, function(now)
        store_column(p, row, now.place, column + k.popcount((now.rest & -now.rest) - 1))
        return {rest = now.rest & (now.rest - 1), place = now.place + 1}
      end).place
    end)
    k.barrier()
    return found
  end

  local function sort(p, row)
    local length = k.loop(zero(k.i64), p.vocab_valid, WINDOW, zero(k.i32), function(low, length)
      local columns = i32(k.min(p.vocab_valid - low, WINDOW))
      set_bits(p, row, low, columns)
      return length + read_bits(p, row, low, columns, i32(row.first) + length)
    end)
    k.when(k.eq(k.tid(), 0), function()
      k.store(p.list_length, row.a, length)
      k.when(k.lt(row.target, 0), function() k.store(p.list_target, row.a, k.const(k.i32, -1)) end)
    end)
  end

  local function refuse(p, row)
    k.when(k.eq(k.tid(), 0), function()
      k.store(p.list_length, row.a, k.const(k.i32, -1))
      k.store(p.list_target, row.a, k.const(k.i32, -1))
      k.store(p.row_class, k.load(k.i32, p.index, row.a), k.const(k.i8, k.abi.ROW_BAD)) -- for the loss of a step
      k.when(~k.is_null(p.error_word), function() k.atomic_add(p.error_word, 0, k.const(k.i32, 1)) end)
    end)
  end

  local function list_sort(p)
    local a = k.ctaid()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    local index, is_ordered = k.load(k.i32, p.index, a), k.eq(k.load(k.i32, p.list_state, 0), 0)
    local function bound(i) return k.select(is_ordered, k.load(k.i64, p.offsets, i), 0) end
    local row = {a = a, target = k.load(k.i32, p.local_target, a), first = bound(index), last = bound(index + 1)}
    local bits = inspect(p, row)
    local is_good = is_ordered & k.eq(bits & OUTSIDE, 0) & (k.lt(row.target, 0) | k.ne(bits & FOUND, 0))
    k.branch(is_good, function() sort(p, row) end, function() refuse(p, row) end)
  end

  ---------------------------------------------------------------------------------------- a warp an active row
  -- The row of this warp, and its scores. length: -1 in a bad row
  local function warp_row(p)
    local a = k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    local row = k.load(k.i32, p.index, a)
    local first = k.load(k.i64, p.offsets, row)
    return {a = a, row = row, first = first, scores = k.offset(p.list_score, first * 4),
            length = k.load(k.i32, p.list_length, a), scale = k.load(k.f32, p.scale, a)}
  end

  local function over_lanes(v, join)
    for _, mask in ipairs {16, 8, 4, 2, 1} do v = join(v, k.shuffle_xor(v, mask)) end
    return v
  end
  local function add(x, y) return x + y end

  -- y·row_scale - m without rounding in between, of -inf as of a masked column.
  local function exponent(y, row, m) return k.max_nan(k.fma(y, row.scale, -m), S.lowest) end

  local function list_reduce(p)
    local row = warp_row(p)
    local function score(i) return k.load(k.f32, row.scores, i, {const = true}) end
    local m = k.loop(k.lane(), row.length, 32, k.const(k.f32, S.lowest), function(i, m)
      return k.max(m, score(i) * row.scale)
    end)
    m = over_lanes(m, k.max)
    local sum = k.loop(k.lane(), row.length, 32, {s = zero(k.f32), q = zero(k.f32)}, function(i, sum)
      local u = exponent(score(i), row, m)
      local e = k.exp2(u)
      return {s = sum.s + e, q = k.fma(e, u, sum.q)}
    end)
    local parts = {m, over_lanes(sum.s, add), over_lanes(sum.q, add)}
    k.when(k.eq(k.lane(), 0), function()
      for i, part in ipairs(parts) do
        k.store(p.part, i64(row.a) + p.capacity * (i - 1), k.select(k.lt(row.length, 0), nan, part))
      end
    end)
  end

  local function is_lost(p, row)
    local stats, lost = k.load_vector(k.f32, 4, p.stats, row), nil
    for _, number in ipairs(stats) do lost = lost and lost | k.is_nan(number) or k.is_nan(number) end
    return lost
  end

  local function list_dz(p)
    local row = warp_row(p)
    local record = k.load_vector(k.f32, 4, p.record, row.a)
    local is_zero = is_lost(p, row.row) | S.is_silent(record)
    local target = k.load(k.i32, p.list_target, row.a) - i32(row.first)
    local to = k.offset(p.list_dz, row.first * 4)
    k.loop(k.lane(), row.length, 32, nil, function(i)
      local y = k.load(k.f32, row.scores, i, {const = true})
      local u = exponent(y, row, record[1])
      local dz = k.select(k.eq(i, target), record[4], k.exp2(u) * k.fma(record[3], u, record[2]))
      dz = k.branch(k.ne(p.capped, 0), function() return dz * ((1.0 - y) * (1.0 + y)) end, function() return dz end)
      k.store(to, i, k.select(is_zero, 0.0, dz))
    end)
  end

  ---------------------------------------------------------------------------------------------- list_hidden
  local EACH = spec.alignment >= 16 and 16 // bytes or 1 -- columns of D of a thread

  -- Adds TOGETHER entries from place `i` of the list on, or those before `stop` alone. rows: W, or B of an adapter;
  -- weight: at this thread's columns of D
  local function add_entries(p, row, rows, weight, i, sums, stop)
    local vectors, dz, real, out = {}, {}, {}, {}
    for j = 1, TOGETHER do
      local place = i + (j - 1)
      if stop then place, real[j] = k.min(place, stop - 1), k.lt(place, stop) end
      local column = k.load(k.i32, row.columns, place, {const = true})
      dz[j] = k.load(k.f32, row.dz, place, {const = true})
      vectors[j] = rows.load(EACH, k.offset(weight, i64(column) * p.weight_stride * rows.bytes), 0)
    end
    for d = 1, EACH do
      out[d] = sums[d]
      for j = 1, TOGETHER do
        local sum = k.fma(dz[j], rows.value(vectors[j][d]), out[d])
        out[d] = stop and k.select(real[j], sum, out[d]) or sum
      end
    end
    return out
  end

  -- vector: which of a row's
  local function sum_entries(p, row, rows, vector)
    local weight = k.offset(p.weight, i64(vector) * (EACH * rows.bytes))
    local whole, sums = row.length // TOGETHER * TOGETHER, {}
    for d = 1, EACH do sums[d] = zero(k.f32) end
    sums = k.loop(zero(k.i32), whole, TOGETHER, sums,
      function(i, now) return add_entries(p, row, rows, weight, i, now) end)
    return k.branch(k.lt(whole, row.length),
      function() return add_entries(p, row, rows, weight, whole, sums, row.length) end, function() return sums end)
  end

  -- Stores the sums as elements of a type, in pieces of up to 16 bytes. vector: which of the row's vectors
  local function store_sums(p, row, vector, sums, type, type_bytes)
    local to = k.offset(p.out, (i64(row.row) * p.out_stride + i64(vector) * EACH) * type_bytes)
    local size = math.min(EACH, 16 // type_bytes)
    for piece = 0, EACH // size - 1 do
      local mine = table.move(sums, piece * size + 1, piece * size + size, 1, {})
      mine = k.branch(k.ne(p.add, 0), function()
        local before, both = k.load_vector(type, size, to, piece), {}
        for d = 1, size do both[d] = k.convert(k.f32, before[d]) + mine[d] end
        return both
      end, function() return mine end)
      for d = 1, size do mine[d] = k.convert(type, mine[d]) end
      k.store_vector(to, piece, mine)
    end
  end

  -- Of list_adapter rows of G: by active row, and 0 where a row is lost or elsewhere, so that it is in no sum.
  local function list_hidden(p, of_b)
    local a = k.ctaid()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    local index, length = k.load(k.i32, p.index, a), k.load(k.i32, p.list_length, a)
    local is_elsewhere = k.eq(length, k.abi.LIST_ELSEWHERE)
    k.exit_if(of_b and is_elsewhere & ~of_b or is_elsewhere)
    local first = k.load(k.i64, p.offsets, index) * 4
    local lost = is_lost(p, index) | k.lt(length, 0)
    local row = {row = of_b and k.select(of_b, a, index) or index, length = k.select(lost, 0, length),
                 columns = k.offset(p.list_column, first), dz = k.offset(p.list_dz, first)}
    k.loop(k.tid(), p.depth // EACH, HIDDEN_THREADS, nil, function(vector)
      local function of(rows) return sum_entries(p, row, rows, vector) end
      local sums = of_b and spec.wide_weight and
        k.branch(of_b, function() return of(B) end, function() return of(W) end) or of(W)
      local has_no_mean = k.is_null(p.tail_missed)
      sums = k.branch(of_b and has_no_mean | of_b or has_no_mean, function() return sums end, function()
        local missed, all = k.load(k.f32, p.tail_missed, a), {}
        for d = 1, EACH do all[d] = k.fma(missed, k.load(k.f32, p.tail_mean, vector * EACH + (d - 1)), sums[d]) end
        return all
      end)
      if of_b then
        sums = k.branch(k.is_null(p.hidden_acc) | of_b, function() return sums end, function()
          local more, at = {}, i64(a) * i64(p.depth) + i64(vector) * EACH
          for d = 1, EACH do more[d] = sums[d] + k.load(k.f32, p.hidden_acc, at + (d - 1)) end
          return more
        end)
      end
      local value = of_b and k.select(of_b, zero(k.f32), nan) or nan
      for d = 1, EACH do sums[d] = k.select(lost, value, sums[d]) end
      local function store(type, type_bytes) store_sums(p, row, vector, sums, type, type_bytes) end
      if bytes == 4 then return store(k.f32, 4) end
      k.branch(k.ne(p.out_is_f32, 0), function() store(k.f32, 4) end, function() store(element, 2) end)
    end)
  end

  local function entry(name, threads, shared_bytes, body, min_ctas)
    k.kernel {entry = name, threads = threads, shared_bytes = shared_bytes, body = body, min_ctas = min_ctas}
  end
  entry("list_check", THREADS, 0, list_check)
  entry("list_sort", THREADS, FAULTS_AT + 4, list_sort)
  k.import "listed_scores" (k, spec)
  entry("list_reduce", THREADS, 0, list_reduce)
  entry("list_dz", THREADS, 0, list_dz)
  entry("list_hidden", HIDDEN_THREADS, 0, list_hidden, HIDDEN_MIN_CTAS)
  if not spec.lora then return end
  entry("list_adapter", HIDDEN_THREADS, 0, function(p) list_hidden(p, k.ne(p.of_b, 0)) end, HIDDEN_MIN_CTAS)
end
