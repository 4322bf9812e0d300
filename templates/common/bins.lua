-- bins.lua: where forward_emit puts the columns of a row above its floor, and where emit_sort finds them.
--
--   bin = min((t - floor) / BIN_WIDTH, BINS - 1),   its places: SHARES[bin] of every 32 of the row's
--
-- Why bins: the floor is a bound of the row's LSE, and may be far below it: the target of a row may be improbable. The
-- columns just above such a floor are too many to list, while those further up are the ones that count. A bin that
-- overflows costs the row what is below its upper edge, no more. Mass falls from bin to bin: lower ones have more places.

local SHARES = {8, 5, 5, 4, 4, 2, 2, 2}               -- of 32

return function(k)
  assert(#SHARES == k.abi.EMIT_BINS, "a share for every bin")
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

  -- The bin of a score above the floor.
  function B.of(score)
    local bin = k.convert(k.i32, k.min(score * (1.0 / k.abi.EMIT_BIN_WIDTH), k.abi.EMIT_BINS - 1.0))
    return k.min(bin, k.abi.EMIT_BINS - 1)
  end

  -- How many places a bin has, and the first of them, in a row of `capacity`. bin: a value, or a Lua number
  function B.places(bin, capacity)
    local unit = k.lshr(capacity, 5)
    if type(bin) == "number" then return unit * SHARES[bin + 1], unit * (starts >> 8 * bin & 0xff) end
    return unit * pick(shares, bin), unit * pick(starts, bin)
  end

  -- How many bins a row has lost: those up to the highest that has overflowed. counts: of the row, by bin
  function B.lost(counts, capacity)
    local lost = k.const(k.i32, 0)
    for i, count in ipairs(counts) do
      lost = k.select(k.gt(count, (B.places(i - 1, capacity))), k.const(k.i32, i), lost)
    end
    return lost
  end

  -- The score above the floor from which on columns are in bins that a row has not lost: a little less than the edge, as
  -- rounding may put what is just below that into the bin above.
  function B.from(lost) return k.convert(k.f32, lost) * (k.abi.EMIT_BIN_WIDTH * (1.0 - 0x1p-20)) end

  -- The row's counts. row: which row
  function B.counts(emit_count, row)
    local counts = {}
    for part = 0, k.abi.EMIT_BINS // 4 - 1 do
      for _, count in ipairs(k.load_vector(k.i32, 4, emit_count, row * (k.abi.EMIT_BINS // 4) + part)) do
        counts[#counts + 1] = count
      end
    end
    return counts
  end

  return B
end
