-- sums.lua: sums over chunks of rows in 24 bits, where the result is bf16.
--
-- A sum between two chunks is an fp32 number rounded to its upper 24 bits: nearest, halves away from zero. NaN stays
-- NaN, an infinity stays one, what rounds beyond the largest number becomes one. Its upper 16 bits stand in the result
-- itself, the next 8 in a byte of the workspace. So a chunk moves a sum by at most 2^-16 of its value, where rounding
-- it to bf16 would move it by up to 2^-8. The last chunk rounds once, from fp32 to bf16.
--
-- The bytes are this kernel's alone. They stand by tile of the result, and inside a tile by vector of 16, then by
-- thread: a thread's bytes are 16 at an address, those of a warp's threads follow each other. Which tile a sum belongs
-- to does not depend on the chunk. Tiles at the end of the result have all their bytes too.

return function(k)
  local S = {group = 16} -- sums whose bytes are one vector
  local NAN = 0x7fc00000

  -- The bits of a sum, of which the upper 24 count.
  function S.round(sum)
    return k.select(k.is_nan(sum), k.const(k.i32, NAN), k.bitcast(k.i32, sum) + 0x80)
  end

  -- The upper halves of two neighbours, from what round gives, as a word of memory.
  function S.high(first, second) return k.lshr(first, 16) | (second & 0xffff0000) end

  -- The low bytes of 16 sums, four a word. bits: what round gives, from after `from` on
  local function low(bits, from)
    local words = {}
    for i = from + 1, from + S.group, 4 do
      words[#words + 1] = (k.lshr(bits[i], 8) & 0xff) | (bits[i + 1] & 0xff00)
        | ((bits[i + 2] & 0xff00) << 8) | ((bits[i + 3] & 0xff00) << 16)
    end
    return words
  end

  -- Two neighbouring sums: their halves in a word, and their bytes among the 16 of a vector, from byte i (even) on.
  function S.join(high, words, i)
    local word = words[i // 4 + 1]
    local function byte(at) -- of the word, as bits 8 to 15
      local moved = at == 0 and word << 8 or at == 1 and word or k.lshr(word, (at - 1) * 8)
      return moved & 0xff00
    end
    return {k.bitcast(k.f32, (high << 16) | byte(i % 4)), k.bitcast(k.f32, (high & 0xffff0000) | byte(i % 4 + 1))}
  end

  -- Where a thread's bytes stand. shape: sums of a thread in a tile, threads; tile: which tile of the result; tid:
  -- which thread. load(i), store(i, bits, from): its i-th vector, from 0
  function S.place(ptr, shape, tile, tid)
    local first = k.convert(k.i64, tile) * (shape.sums // S.group * shape.threads) + k.convert(k.i64, tid)
    local P = {}
    function P.load(i) return k.load_vector(k.i32, 4, ptr, first + i * shape.threads) end
    function P.store(i, bits, from) k.store_vector(ptr, first + i * shape.threads, low(bits, from)) end
    return P
  end

  return S
end
