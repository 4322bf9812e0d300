-- listed_weight.lua: listed columns, gradients of weight and bias: see runtime/kernel/abi.h for each entry.
--
--   dW[v] = Σ_e dz_e·hidden[row_e], dB[v] = Σ_e dz_e·u[row_e], db[v] = Σ_e dz_e    over the entries e of column v, ascending
--
--   list_digits, list_scan, list_place  one pass of a radix sort: entries by column
--   list_starts                         where the entries of each column start
--   list_weight                         columns with few entries: a warp each
--   list_weight_wide                    the others: a CTA for a column and a slice of D at a time
--
-- The order of entries is stable, and every sum goes over it in a way that depends on the number of a column's entries
-- alone. Columns count unsigned, so that -1, no column, is the largest. Its digits are all ones: the passes must leave
-- it above vocab_valid - 1, which has another digit then.

local BITS, DIGITS, BLOCK = k.abi.LIST_DIGIT_BITS, k.abi.LIST_DIGITS, k.abi.LIST_BLOCK
local WIDE, SLICE = k.abi.LIST_WIDE, k.abi.LIST_SLICE
local THREADS = 256                                 -- of a CTA
local WARPS = THREADS // 32
local STEPS = BLOCK // THREADS                      -- places of a thread of list_digits, list_place
local SCAN_THREADS, SCAN_EACH = 1024, 16            -- list_scan: items of a thread at a time
local NARROW_THREADS = 128                          -- list_weight: small, as a CTA lasts as long as its longest column
local NARROW_FLIGHT = 4                             -- rows of hidden that a warp of list_weight loads at a time
local LANE = SLICE // 32                            -- elements of a slice that a lane sums

return function(k, spec)
  local types = {bf16 = {type = k.bf16, bytes = 2}, fp16 = {type = k.f16, bytes = 2}, fp32 = {type = k.f32, bytes = 4}}
  local operand, single = types[spec.dtype], types.fp32
  local aligned = spec.alignment >= 16
  local EACH = aligned and 16 // operand.bytes or 1 -- neighbouring elements of a lane
  local PIECES = LANE // EACH
  local WIDE_FLIGHT = aligned and operand.bytes == 2 and 8 or 4
  local constant = {const = true}
  local function i64(v) return k.convert(k.i64, v) end
  local function zero() return k.const(k.f32, 0.0) end
  local scan = k.import "scan" (k)
  local inclusive, over_cta = scan.inclusive, scan.over_cta

  -- The row of hidden of an active one; of an adapter's u, that itself.
  local function row_of(p, active)
    return spec.lora and active or k.load(k.i32, p.index, active, constant)
  end

  -- How many entries there are.
  local function entries_of(p)
    return k.branch(k.is_null(p.list_total), function() return p.list_count end,
      function() return k.load(k.i32, p.list_total, 0, constant) end)
  end

  -- How many pieces of that size hold them.
  local function pieces_in(entries, size) return k.udiv(entries + (size - 1), size) end

  ----------------------------------------------------------------------------------------------- the order of entries
  -- The entries of a thread's places, a warp's 32 after the other, and their digits, DIGITS where there is no entry.
  local function load_digits(p, entries)
    local first = k.ctaid() * BLOCK + k.warp() * (BLOCK // WARPS) + k.lane()
    local function each(f)
      local out = {}
      for s = 1, STEPS do out[s] = f(s) end
      return out
    end
    local function exists(s) return k.lt(first + (s - 1) * 32, entries) end
    local place = each(function(s) return k.select(exists(s), first + (s - 1) * 32, 0) end)
    local entry = k.branch(k.is_null(p.from), function() return place end,
      function() return each(function(s) return k.load(k.i32, p.from, place[s], constant) end) end)
    local column = each(function(s) return k.load(k.i32, p.list_column, entry[s], constant) end)
    local digit = each(function(s)
      return k.select(exists(s), k.lshr(column[s], p.shift) & (DIGITS - 1), DIGITS)
    end)
    return {entry = entry, digit = digit}
  end

  local function counter(warp, digit) return k.shared() + (warp * DIGITS + digit) * 4 end

  -- Lanes with the digit of this lane.
  local function find_peers(digit)
    local peers = k.const(k.i32, -1)
    for bit = 0, BITS do
      local set = k.ne(digit & (1 << bit), 0)
      local lanes = k.ballot(set)
      peers = peers & k.select(set, lanes, ~lanes)
    end
    return peers
  end

  -- Counts the digits of each warp, and returns digit·BLOCK + how many entries of the warp with that digit stand
  -- before.
  local function count_digits(digits)
    local below, ranked = (k.const(k.i32, 1) << k.lane()) - 1, {}
    for i = 0, WARPS * DIGITS // THREADS - 1 do
      k.shared_store(k.shared() + (i * THREADS + k.tid()) * 4, k.const(k.i32, 0))
    end
    for s = 1, STEPS do
      k.barrier()                                   -- another lane may have counted this digit
      local at, peers = counter(k.warp(), digits[s]), find_peers(digits[s])
      local leader = k.popcount((peers & -peers) - 1)
      local before = k.branch(k.lt(digits[s], DIGITS) & k.eq(leader, k.lane()), function()
        local count = k.shared_load(k.i32, at)
        k.shared_store(at, count + k.popcount(peers))
        return count
      end, function() return k.const(k.i32, 0) end)
      ranked[s] = digits[s] * BLOCK + k.shuffle_idx(before, leader) + k.popcount(peers & below)
    end
    k.barrier()
    return ranked
  end

  -- Calls f with each digit of a thread, and with its place in list_digit.
  local function each_digit(blocks, f)
    for i = 0, DIGITS // THREADS - 1 do
      local digit = i * THREADS + k.tid()
      f(digit, digit * blocks + k.ctaid())
    end
  end

  -- The entries there are and their blocks, where this CTA has one; grids are for as many as there may be.
  local function enter_block(p)
    local entries = entries_of(p)
    local blocks = pieces_in(entries, BLOCK)
    k.exit_if(k.ge(k.ctaid(), blocks))
    return entries, blocks
  end

  local function list_digits(p)
    local entries, blocks = enter_block(p)
    count_digits(load_digits(p, entries).digit)
    each_digit(blocks, function(digit, at)
      local sum = k.const(k.i32, 0)
      for warp = 0, WARPS - 1 do sum = sum + k.shared_load(k.i32, counter(warp, digit)) end
      k.store(p.list_digit, at, sum)
    end)
  end

  local function list_place(p)
    local entries, blocks = enter_block(p)
    local found = load_digits(p, entries)
    local ranked = count_digits(found.digit)
    each_digit(blocks, function(digit, at)                  -- counts become the places of each warp's first
      local place = k.load(k.i32, p.list_digit, at, constant)
      for warp = 0, WARPS - 1 do
        local count = k.shared_load(k.i32, counter(warp, digit))
        k.shared_store(counter(warp, digit), place)
        place = place + count
      end
    end)
    k.barrier()
    for s = 1, STEPS do
      local digit, rank = k.udiv(ranked[s], BLOCK), ranked[s] & (BLOCK - 1)
      k.when(k.lt(digit, DIGITS), function()
        k.store(p.to, k.shared_load(k.i32, counter(k.warp(), digit)) + rank, found.entry[s])
      end)
    end
  end

  ----------------------------------------------------------------------------------------------- list_scan

  -- The numbers of this thread, from item `first` on, 0 behind the last; items are a multiple of SCAN_EACH.
  local function load_items(p, items, first)
    return k.branch(k.lt(first, items), function()
      local values = {}
      for i = 0, SCAN_EACH // 4 - 1 do
        local vector = k.load_vector(k.i32, 4, p.list_digit, k.lshr(first, 2) + i)
        for j = 1, 4 do values[4 * i + j] = vector[j] end
      end
      return values
    end, function()
      local values = {}
      for i = 1, SCAN_EACH do values[i] = k.const(k.i32, 0) end
      return values
    end)
  end

  local function store_items(p, items, first, values, before)
    k.when(k.lt(first, items), function()
      for i = 0, SCAN_EACH // 4 - 1 do
        local vector = {}
        for j = 1, 4 do vector[j], before = before, before + values[4 * i + j] end
        k.store_vector(p.list_digit, k.lshr(first, 2) + i, vector)
      end
    end)
  end

  -- The sums of warps stand in one of two places by turns: a warp may be ahead of another by less than two barriers.
  local function list_scan(p)
    local items, mine = pieces_in(entries_of(p), BLOCK) * DIGITS, k.tid() * SCAN_EACH
    local start = {values = load_items(p, items, mine), before = k.const(k.i32, 0), turn = k.const(k.i32, 0)}
    k.loop(k.const(k.i32, 0), items, SCAN_THREADS * SCAN_EACH, start, function(first, now)
      local next = load_items(p, items, first + mine + SCAN_THREADS * SCAN_EACH)
      local sum = now.values[1]
      for i = 2, SCAN_EACH do sum = sum + now.values[i] end
      local inside, slots = inclusive(sum), k.shared() + now.turn
      k.when(k.eq(k.lane(), 31), function() k.shared_store(slots + k.warp() * 4, inside) end)
      k.barrier()
      local of_warp = k.shared_load(k.i32, slots + k.lane() * 4)
      local warps = inclusive(of_warp)
      local before = now.before + k.shuffle_idx(warps - of_warp, k.warp())
      store_items(p, items, first + mine, now.values, before + (inside - sum))
      return {values = next, before = now.before + k.shuffle_idx(warps, 31), turn = 128 - now.turn}
    end)
  end

  ----------------------------------------------------------------------------------------------- list_starts
  local function list_starts(p)
    local v = k.ctaid() * THREADS + k.tid()
    k.exit_if(k.gt(v, p.vocab_valid))
    local found = k.while_({low = k.const(k.i32, 0), high = entries_of(p)},
      function(range) return k.lt(range.low, range.high) end,
      function(range)
        local middle = k.lshr(range.low + range.high, 1)
        local column = k.load(k.i32, p.list_column, k.load(k.i32, p.order, middle, constant), constant)
        local before = k.ult(column, v)
        return {low = k.select(before, middle + 1, range.low), high = k.select(before, range.high, middle)}
      end)
    k.store(p.list_start, v, found.low)
  end

  ----------------------------------------------------------------------------------------------- elements of a slice
  -- The pieces of a lane's elements from column `slice` of D on. Where there is none it reads the last one of the row.
  local function pieces_of(p, slice)
    local out = {}
    for i = 1, PIECES do
      local column = slice + ((i - 1) * 32 * EACH + k.lane() * EACH)
      out[i] = {inside = k.lt(column, p.depth), column = k.min(column, p.depth - EACH)}
    end
    return out
  end

  -- Loads a piece from element `column` of a row on, and returns what gives its elements in f32.
  local function fetch(of, row, column, options)
    if EACH == 1 then
      local value = k.load(of.type, row, column, options)
      return function() return {of == single and value or k.convert(k.f32, value)} end
    end
    if of.type == k.bf16 then
      local words = k.load_vector(k.i32, 4, row, k.udiv(column, 8), options)
      return function()
        local out = {}
        for i, word in ipairs(words) do
          out[2 * i - 1], out[2 * i] = k.bitcast(k.f32, word << 16), k.bitcast(k.f32, word & -65536)
        end
        return out
      end
    end
    local all, each = {}, 16 // of.bytes
    for i = 0, EACH // each - 1 do
      local vector = k.load_vector(of.type, each, row, k.udiv(column, each) + i, options)
      for j = 1, each do all[i * each + j] = vector[j] end
    end
    return function()
      local out = {}
      for i, value in ipairs(all) do out[i] = of == single and value or k.convert(k.f32, value) end
      return out
    end
  end

  local function narrowed(of, value) return of == single and value or k.convert(of.type, value) end

  local function store_piece(of, row, column, values)
    if EACH == 1 then return k.store(row, column, narrowed(of, values[1])) end
    local each = 16 // of.bytes
    for i = 0, EACH // each - 1 do
      local vector = {}
      for j = 1, 4 do
        local first = i * each + (j - 1) * (each // 4) + 1
        vector[j] = of == single and values[first] or k.pack(of.type, values[first], values[first + 1])
      end
      k.store_vector(row, k.udiv(column, each) + i, vector)
    end
  end

  -- f(type, row) for row v of weight_out, in the type that it has.
  local function with_out(p, v, f)
    local function at(of) f(of, k.offset(p.weight_out, i64(v) * p.weight_out_stride * of.bytes)) end
    if operand == single then return at(single) end
    k.branch(k.ne(p.weight_out_is_f32, 0), function() at(single) end, function() at(operand) end)
  end

  local function store_bias(p, v, sum)
    local function at(of)
      k.store(p.bias_out, v, narrowed(of, k.branch(k.ne(p.add_bias, 0),
        function() return k.convert(k.f32, k.load(of.type, p.bias_out, v)) + sum end, function() return sum end)))
    end
    if operand == single then return at(single) end
    k.branch(k.ne(p.bias_out_is_f32, 0), function() at(single) end, function() at(operand) end)
  end

  local function store_sums(p, v, pieces, sums)
    with_out(p, v, function(of, row)
      for i, piece in ipairs(pieces) do
        k.when(piece.inside, function()
          local made = {}
          for j = 1, EACH do made[j] = sums[(i - 1) * EACH + j] end
          local values = k.branch(k.ne(p.add, 0), function()
            local old = fetch(of, row, piece.column)()
            for j = 1, EACH do old[j] = old[j] + made[j] end
            return old
          end, function() return made end)
          store_piece(of, row, piece.column, values)
        end)
      end
    end)
  end

  ----------------------------------------------------------------------------------------------- sums
  local function no_sums()
    local out = {}
    for i = 1, LANE do out[i] = zero() end
    return out
  end

  -- Entries to the sums in order, their rows' loads under way together. A row of dz 0 may hold anything.
  local function add_entries(p, entries, pieces, sums)
    local fetched, out = {}, {}
    for r, entry in ipairs(entries) do
      local row = k.offset(p.hidden, i64(entry.row) * p.hidden_stride * operand.bytes)
      fetched[r] = {}
      for i, piece in ipairs(pieces) do fetched[r][i] = fetch(operand, row, piece.column, constant) end
    end
    for i = 1, LANE do out[i] = sums[i] end
    for r, entry in ipairs(entries) do
      local counts = k.ne(entry.dz, 0.0)
      for i, values in ipairs(fetched[r]) do
        for j, value in ipairs(values()) do
          local at = (i - 1) * EACH + j
          out[at] = k.select(counts, k.fma(entry.dz, value, out[at]), out[at])
        end
      end
    end
    return out
  end

  -- Where the entries of column v stand in order: the first, and how many.
  local function column_of(p, v)
    local first = k.load(k.i32, p.list_start, v, constant)
    return first, k.load(k.i32, p.list_start, v + 1, constant) - first
  end

  ----------------------------------------------------------------------------------------------- list_weight
  -- An entry a lane, from entry `from` of the column's on; none behind the last is asked for.
  local function load_entries(p, first, count, from)
    local at = k.lane() + from
    return k.branch(k.lt(at, count), function()
      local entry = k.load(k.i32, p.order, first + at, constant)
      local row = row_of(p, k.load(k.i32, p.list_row, entry, constant))
      return {row = row, dz = k.load(k.f32, p.list_dz, entry, constant)}
    end, function() return {row = k.const(k.i32, 0), dz = zero()} end)
  end

  local function list_weight(p)
    local v = k.ctaid() * (NARROW_THREADS // 32) + k.warp()
    k.exit_if(k.ge(v, p.vocab_valid))
    local first, count = column_of(p, v)
    k.exit_if(k.ge(count, WIDE))
    local lanes = {}                                -- of 32 entries each
    for i = 1, WIDE // 32 do lanes[i] = load_entries(p, first, count, (i - 1) * 32) end
    local function pick(name, j)
      local from = lanes[1][name]
      for i = 2, WIDE // 32 do from = k.select(k.ge(j, (i - 1) * 32), lanes[i][name], from) end
      return k.shuffle_idx(from, j & 31)
    end
    local function left_alone(add) return k.ne(add, 0) & k.eq(count, 0) end
    k.when(~(k.is_null(p.bias_out) | left_alone(p.add_bias)), function()
      local sum = k.loop(k.const(k.i32, 0), count, 1, zero(), function(j, sum) return sum + pick("dz", j) end)
      k.when(k.eq(k.lane(), 0), function() store_bias(p, v, sum) end)
    end)
    local function add_some(rows, pieces)
      return function(j, sums)
        local entries = {}
        for r = 1, rows do entries[r] = {row = pick("row", j + (r - 1)), dz = pick("dz", j + (r - 1))} end
        return add_entries(p, entries, pieces, sums)
      end
    end
    k.exit_if(k.is_null(p.weight_out) | left_alone(p.add))
    local whole = count // NARROW_FLIGHT * NARROW_FLIGHT
    k.loop(k.const(k.i32, 0), p.depth, SLICE, nil, function(slice)
      local pieces = pieces_of(p, slice)
      local sums = k.loop(k.const(k.i32, 0), whole, NARROW_FLIGHT, no_sums(), add_some(NARROW_FLIGHT, pieces))
      store_sums(p, v, pieces, k.loop(whole, count, 1, sums, add_some(1, pieces)))
    end)
  end

  ----------------------------------------------------------------------------------------------- list_weight_wide
  -- The sums of a warp's entries, WARPS apart, and of their dz. with_rows: false for those of dz alone. The next 32 are
  -- looked up, an array after the other, while the rows of these are under way.
  local function sum_warp(p, first, count, pieces, with_rows)
    local mine = (count - k.warp() + (WARPS - 1)) // WARPS
    local function find(at, step)                   -- what comes next of a lane's entry, where step says how far it is
      if not step.entry then
        step.at = at
        step.entry = k.load(k.i32, p.order, first + k.warp() + k.min(at, mine - 1) * WARPS, constant)
      elseif not step.dz then
        local dz = k.load(k.f32, p.list_dz, step.entry, constant)
        step.active, step.dz = k.load(k.i32, p.list_row, step.entry, constant), k.select(k.lt(at, mine), dz, 0.0)
      elseif not step.row then
        step.row = row_of(p, step.active)
      end
    end
    local start = {}
    for _ = 1, 3 do find(k.lane(), start) end
    local state = {row = start.row, dz = start.dz, bias = zero(), sums = no_sums()}
    return k.loop(k.const(k.i32, 0), mine, 32, state, function(from, now)
      local next, sums, bias = {}, now.sums, now.bias
      for group = 0, 32 // WIDE_FLIGHT - 1 do
        find(from + 32 + k.lane(), next)
        local entries = {}
        for r = 1, WIDE_FLIGHT do
          local lane = group * WIDE_FLIGHT + r - 1
          entries[r] = {row = k.shuffle_idx(now.row, lane), dz = k.shuffle_idx(now.dz, lane)}
          bias = bias + entries[r].dz
        end
        if with_rows then
          sums = k.branch(k.lt(from + group * WIDE_FLIGHT, mine),
            function() return add_entries(p, entries, pieces, sums) end, function() return sums end)
        end
      end
      return {row = next.row, dz = next.dz, bias = bias, sums = sums}
    end)
  end

  local function share_sums(made)
    local of_warp = k.shared() + k.warp() * SLICE * 4
    for i = 1, LANE do
      local piece, j = (i - 1) // EACH, (i - 1) % EACH
      k.shared_store(of_warp + (piece * 32 * EACH + k.lane() * EACH + j) * 4, made.sums[i])
    end
    k.when(k.eq(k.lane(), 0), function() k.shared_store(k.shared() + (WARPS * SLICE + k.warp()) * 4, made.bias) end)
    k.barrier()
  end

  local function shared_sum(from, stride)           -- over the warps, in order
    local sum = k.shared_load(k.f32, from)
    for warp = 1, WARPS - 1 do sum = sum + k.shared_load(k.f32, from + warp * stride) end
    return sum
  end

  -- A column and a slice of D that a CTA has found: v, slice, first, count.
  local FOUND_AT = WARPS * (SLICE + 1) * 4
  local FOUND_BYTES, SCAN_BYTES = THREADS * 16, 32 * 4

  -- Finds what there is to do among the next THREADS pairs of this CTA, from pair `from` (i64) on, a thread each.
  -- Returns how many in shared memory; a barrier is to come.
  local function find_wide(p, from, stride, slices, pairs)
    local pair = from + i64(k.tid()) * stride
    local nothing = {v = k.const(k.i32, 0), slice = k.const(k.i32, 0), first = k.const(k.i32, 0),
                     count = k.const(k.i32, 0)}
    local mine = k.branch(k.lt(pair, pairs), function()
      local at = k.udiv(pair, slices)
      local place, slice = k.convert(k.i32, at) * WIDE, k.convert(k.i32, pair - at * slices) * SLICE
      local v = k.load(k.i32, p.list_column, k.load(k.i32, p.order, place, constant), constant)
      return k.branch(k.ge(v, 0), function()
        local first, count = column_of(p, v)
        local is_taken = k.ge(count, WIDE) & k.eq((first + (WIDE - 1)) & -WIDE, place)
        return {v = v, slice = slice, first = first, count = k.select(is_taken, count, 0)}
      end, function() return nothing end)
    end, function() return nothing end)
    local is_taken = k.ne(mine.count, 0)
    local before, found = over_cta(k.zext(k.i32, is_taken), k.shared() + (FOUND_AT + FOUND_BYTES), WARPS)
    k.when(is_taken, function()
      k.shared_store_vector(k.shared() + (before * 16 + FOUND_AT), {mine.v, mine.slice, mine.first, mine.count})
    end)
    return found
  end

  local function sum_wide(p, v, slice, first, count)
    local pieces = pieces_of(p, slice)
    share_sums(k.branch(k.is_null(p.weight_out), function() return sum_warp(p, first, count, pieces, false) end,
      function() return sum_warp(p, first, count, pieces, true) end))
    local column = slice + k.tid()
    k.when(~k.is_null(p.weight_out) & k.lt(column, p.depth), function()
      local sum = shared_sum(k.shared() + k.tid() * 4, SLICE * 4)
      with_out(p, v, function(of, row)
        local old = k.branch(k.ne(p.add, 0), function()
          local value = k.load(of.type, row, column)
          return of == single and value or k.convert(k.f32, value)
        end, zero)
        k.store(row, column, narrowed(of, old + sum))
      end)
    end)
    k.when(~k.is_null(p.bias_out) & k.eq(slice, 0) & k.eq(k.tid(), 0), function()
      store_bias(p, v, shared_sum(k.shared() + WARPS * SLICE * 4, 4))
    end)
  end

  -- Pairs of a place and a slice of D, of which the bias alone needs the first.
  local function list_weight_wide(p)
    local slices = i64(k.select(k.is_null(p.weight_out), 1, (p.depth + (SLICE - 1)) // SLICE))
    local pairs, stride = i64(pieces_in(entries_of(p), WIDE)) * slices, i64(k.nctaid())
    k.while_(i64(k.ctaid()), function(from) return k.lt(from, pairs) end, function(from)
      local found = find_wide(p, from, stride, slices, pairs)
      k.loop(k.const(k.i32, 0), found, 1, nil, function(i)
        k.barrier()                                 -- what was found is there, the sums of the one before are read
        local one = k.shared_load_vector(k.i32, 4, k.shared() + (i * 16 + FOUND_AT))
        sum_wide(p, one[1], one[2], one[3], one[4])
      end)
      return from + stride * THREADS
    end)
  end

  -- min_ctas: where ptxas would save registers, and load rows one after the other, or would take more than it needs
  local function entry(name, threads, min_ctas, shared_bytes, body)
    k.kernel {entry = name, threads = threads, min_ctas = min_ctas, shared_bytes = shared_bytes, body = body}
  end
  entry("list_digits", THREADS, nil, WARPS * DIGITS * 4, list_digits)
  entry("list_scan", SCAN_THREADS, nil, 2 * 32 * 4, list_scan)
  entry("list_place", THREADS, nil, WARPS * DIGITS * 4, list_place)
  entry("list_starts", THREADS, nil, 0, list_starts)
  entry("list_weight", NARROW_THREADS, aligned and 10 or 8, 0, list_weight)
  entry("list_weight_wide", THREADS, aligned and 3 or 2, FOUND_AT + FOUND_BYTES + SCAN_BYTES, list_weight_wide)
end
