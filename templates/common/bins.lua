-- bins.lua: where part emit puts the columns of a row above its floor, and where emit_sort finds them.
--
--   bin = min((t - floor) / BIN_WIDTH, BINS - 1),   its places: SHARES[bin] of every 32 of the row's
--
-- Why bins: the floor is a bound of the row's LSE, and may be far below it: the target of a row may be improbable. The
-- columns just above such a floor are too many to list, while those further up are the ones that count. A bin that
-- overflows costs the row what is below its upper edge, no more. Mass falls from bin to bin: lower ones have more places.

local SHARES = {8, 5, 5, 4, 4, 2, 2, 2}               -- of 32

return function(k)
  local BINS, WIDTH = k.abi.EMIT_BINS, k.abi.EMIT_BIN_WIDTH
  assert(#SHARES == BINS, "a share for every bin")
  local shares, starts, start = 0, 0, 0               -- of a bin, in eight bits each
  for i, share in ipairs(SHARES) do
    shares, starts = shares | share << 8 * (i - 1), starts | start << 8 * (i - 1)
    start = start + share
  end
  assert(start == 32, "shares add up")
  local B = {}

  local function pick(packed, bin)
    return k.convert(k.i32, k.lshr(k.const(k.i64, packed), k.zext(k.i64, bin << 3))) & 0xff
  end

  -- The bin of a score above the floor, by comparisons: exact at its edges.
  function B.of(score)
    local bin = k.const(k.i32, 0)
    for i = 1, BINS - 1 do bin = bin + k.zext(k.i32, k.ge(score, 1.0 * i * WIDTH)) end
    return bin
  end

  -- The lower edge of a bin. The upper one of the last is NaN, which no score reaches.
  function B.edge(bin) return k.select(k.lt(bin, BINS), k.convert(k.f32, bin) * (1.0 * WIDTH), 0.0 / 0.0) end

  -- What a score is above that is in a bin from this one on, 0 to BINS: the floor, or a little less than the edge.
  function B.gate(bin)
    local below = k.convert(k.f32, bin) * (WIDTH * (1.0 - 0x1p-20))
    return k.select(k.lt(bin, BINS), below, 1.0 / 0.0)
  end

  -- The first bin that a row needs which has this partial, less one of all columns or of some: the bin of its LSE plus
  -- the threshold. Of more columns it is never less: LSEs of some are made less by more than sums round.
  function B.first(m, s, log2_threshold, floor)
    local lse = m + (k.log2(s) - 0x1p-6)
    return B.of(lse + log2_threshold - floor)
  end

  -- How many places a bin has, and the first of them, in a row of `capacity`. bin: a value, or a Lua number
  function B.places(bin, capacity)
    local unit = k.lshr(capacity, 5)
    if type(bin) == "number" then return unit * SHARES[bin + 1], unit * (starts >> 8 * bin & 0xff) end
    return unit * pick(shares, bin), unit * pick(starts, bin)
  end

  -- The first bin, from `first` on, of those above the highest that has overflowed. counts: of the row, by bin
  function B.whole(counts, capacity, first)
    local whole = first
    for i, count in ipairs(counts) do
      local is_lost = k.gt(count, (B.places(i - 1, capacity))) & k.le(first, i - 1)
      whole = k.select(is_lost, k.const(k.i32, i), whole)
    end
    return whole
  end

  -- The row's counts. row: which row
  function B.counts(emit_count, row)
    local counts = {}
    for part = 0, BINS // 4 - 1 do
      for _, count in ipairs(k.load_vector(k.i32, 4, emit_count, row * (BINS // 4) + part)) do
        counts[#counts + 1] = count
      end
    end
    return counts
  end

  return B
end
