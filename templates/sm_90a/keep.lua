-- keep.lua (sm_90a): stores what forward sums, for save, stream and direction modes: hooks of online.lua.
--
--   kept[a][v] = 2^(t - k_a) in bf16,  k_a = reference[a], chosen before by keep_reference (kept.lua)
--   kept ← kept·(1 - tanh²)            with softcap, where p.slope is 1: the gradient but for a factor a row
--   kept ← ±kept                       with an entropy, where p.slope is 0: the sign of t - m (largest.lua)
--
-- Shapes: as forward (online.lua); reference (n) by active row -> kept (row_end - row_begin, vocab_valid), zeros behind
-- the last active row up to the end of its row panel. online.lua has 2^(t - m) at hand; 2^(m - k_a), one number a row
-- and block, moves it to the row's reference. Out of range it may be infinite: keep_finish has such rows done again.
--
-- A block of 64 columns is one staged box (staging.lua). Its first 8 rows wait in registers until the other 8 are
-- summed.

return function(k, spec, H)
  if spec.dtype ~= "bf16" then
    error("dtype: " .. spec.dtype .. " lacks the range of exponentials; bf16 is accepted")
  end
  local staging = k.import "staging"
  local S, L = k.import "score" (k), k.import "largest" (k)

  local B = staging.over(k, spec, H)
  local K = {finish = B.finish, by_columns = true}
  if spec.entropy then K.mark = function(p) return L.mark(p.slope) end end
  local upper = {}                              -- of the row with h = 0: its words, by block of the tile

  -- Pair by pair: with all values made first ptxas spills more.
  local function words_of(p, exponentials, lift, y, exists)
    local function value(i)
      local kept = exponentials[i] * lift
      return spec.softcap and kept * S.slope(y[i], p.slope) or kept
    end
    local words = {}
    for i = 1, #exponentials, 2 do
      local pair = B.pair(value(i), value(i + 1))
      words[#words + 1] = k.select(exists, pair, 0)
    end
    return words
  end

  local function store_box(p, u, w, column, lower, higher)
    local pairs = {}
    for i, word in ipairs(lower) do
      pairs[2 * i - 1], pairs[2 * i] = word, higher[i]
    end
    B.store(p.kept_map, B.place(), function() return column, u.row + H.warp_row(w) end, pairs)
  end

  function K.row(p, u, row)
    local active, block = p.row_begin + u.row + H.row(row.w, row.h), 0
    local exists = k.lt(active, u.row_end)
    local reference = k.load(k.f32, p.reference, k.select(exists, active, p.row_begin))
    return function(column, exponentials, m, y)
      local words = words_of(p, exponentials, k.exp2(m - reference), y, exists)
      block = block + 1
      if row.h == 0 then upper[block] = words
      else store_box(p, u, row.w, column, upper[block], words) end
    end
  end

  return K
end
