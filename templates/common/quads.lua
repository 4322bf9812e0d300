-- quads.lua: rows of 16 bits between accumulators and memory. Of 8 columns of a row, lane i of a quad has the pair i,
-- as the tensor cores leave it: stored so, a warp touches 8 lines for 16 bytes each. A quad that exchanges the words of
-- 4 such groups has a whole group a lane, and 64 bytes of the row together.

return function(k)
  local Q = {columns = 32}                        -- that a quad exchanges at a time

  -- words: 4, of group i the pair of this lane -> of group (lane mod 4) the pairs in order; and back.
  function Q.exchange(words, lane)
    local function step(mask, first, second) -- of two words, one is this lane's and one its neighbour's
      local upper = k.ne(lane & mask, 0)
      local other = k.shuffle_xor(k.select(upper, first, second), mask)
      return k.select(upper, other, first), k.select(upper, second, other)
    end
    local a, b = step(1, words[1], words[2])
    local c, d = step(1, words[3], words[4])
    a, c = step(2, a, c)
    b, d = step(2, b, d)
    return {a, b, c, d}
  end

  return Q
end
