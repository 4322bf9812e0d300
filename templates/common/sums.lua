-- sums.lua: sums over chunks of rows in 20 or 24 bits, where the result is bf16.
--
-- A sum between two chunks is an fp32 number rounded to its upper bits: nearest, halves away from zero. NaN stays NaN,
-- an infinity stays one, what rounds beyond the largest number becomes one. Its upper 16 bits stand in the result
-- itself, the next 4 or 8 in the workspace. So a chunk moves a sum by at most 2^-12 or 2^-16 of its value, where
-- rounding it to bf16 would move it by up to 2^-8. The last chunk rounds once, from fp32 to bf16.
--
-- The lower bits are this kernel's alone. They stand by tile of the result, and inside a tile by vector of 16 sums, then
-- by thread: a thread's 8 or 16 bytes are at an address, those of a warp's threads follow each other. Which tile a sum
-- belongs to does not depend on the chunk. Tiles at the end of the result have all their bytes too.

-- low: lower bits of a sum, 4 or 8
return function(k, low)
  local S = {group = 16} -- sums whose lower bits are one vector
  local NAN = 0x7fc00000
  local MASK, EACH = (1 << low) - 1, 32 // low       -- of lower bits; sums of a word

  -- The bits of a sum, of which the upper ones count.
  function S.round(sum)
    return k.select(k.is_nan(sum), k.const(k.i32, NAN), k.bitcast(k.i32, sum) + (1 << (15 - low)))
  end

  -- The upper halves of two neighbours, from what round gives, as a word of memory.
  function S.high(first, second) return k.lshr(first, 16) | (second & 0xffff0000) end

  -- The lower bits of 16 sums, EACH a word. bits: what round gives, from after `from` on
  local function pack(bits, from)
    local words, mask = {}, MASK << (16 - low)       -- of the lower bits, where they stand in a sum
    for first = from + 1, from + S.group, EACH do
      local word = k.lshr(bits[first], 16 - low) & MASK
      for i = 1, EACH - 1 do
        local part, up = bits[first + i] & mask, i * low - (16 - low)
        word = word | (up == 0 and part or up > 0 and part << up or k.lshr(part, -up))
      end
      words[#words + 1] = word
    end
    return words
  end

  -- Two neighbouring sums: their halves in a word, and their lower bits among the 16 of a vector, from sum i (even) on.
  function S.join(high, words, i)
    local word = words[i // EACH + 1]
    local function lower(at) -- of the word, where it stands in a sum
      local down = at * low - (16 - low)
      local moved = down == 0 and word or down < 0 and word << -down or k.lshr(word, down)
      return moved & (MASK << (16 - low))
    end
    local at = i % EACH
    return {k.bitcast(k.f32, (high << 16) | lower(at)), k.bitcast(k.f32, (high & 0xffff0000) | lower(at + 1))}
  end

  -- Where a thread's lower bits stand. shape: sums of a thread in a tile, threads; tile: which tile of the result; tid:
  -- which thread. load(i), store(i, bits, from): its i-th vector, from 0
  function S.place(ptr, shape, tile, tid)
    local first = k.convert(k.i64, tile) * (shape.sums // S.group * shape.threads) + k.convert(k.i64, tid)
    local P = {}
    function P.load(i) return k.load_vector(k.i32, S.group // EACH, ptr, first + i * shape.threads) end
    function P.store(i, bits, from) k.store_vector(ptr, first + i * shape.threads, pack(bits, from)) end
    return P
  end

  return S
end
