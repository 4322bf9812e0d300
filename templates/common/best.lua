-- best.lua: the best K of a list, by one warp: of falling scores, of equal ones the lowest column first.
--
-- A score's key is an i32 that orders as the score does, unsigned; both zeros have one key. 0, which no score has, stands
-- for nothing. The K-th largest key, and of those that share it the last column that is in, are found bit by bit: so the
-- order in which the list stands does not matter.

return function(k)
  local B = {}
  local SIGN = -0x80000000

  function B.key(score)
    local bits = k.bitcast(k.i32, score + 0.0)        -- -0 becomes 0
    return bits ~ ((bits >> 31) | SIGN)
  end

  function B.score(key)
    return k.bitcast(k.f32, key ~ (~(key >> 31) | SIGN))
  end

  -- The least number above x among those without denormals: t > x is t >= it, for all t but NaN. -inf: the lowest finite;
  -- inf, NaN: NaN.
  function B.above(x)
    local least = 0x1p-126
    local bits = k.bitcast(k.i32, x)
    local next = k.bitcast(k.f32, bits + k.select(k.lt(bits, 0), k.const(k.i32, -1), 1))
    next = k.select(k.lt(k.abs(next), least), 0.0, next)
    return k.select(k.lt(k.abs(x), least), least, next)
  end

  B.LOWEST = -0x1.fffffep127                          -- the least score that a column of a list has: any above -inf

  local function over_lanes(v)
    for _, mask in ipairs {16, 8, 4, 2, 1} do v = v + k.shuffle_xor(v, mask) end
    return v
  end

  -- How many of the list's places hold; is: of (place) -> i1
  local function count_places(length, is)
    return over_lanes(k.loop(k.lane(), length, 32, k.const(k.i32, 0), function(i, sum)
      return sum + k.zext(k.i32, is(i))
    end))
  end

  -- The largest number of so many bits, from `top` (i32, a power of two) down, for which enough(number) holds, as it does
  -- for all below one that it holds for; 0 where it holds for none but that.
  local function search(top, bits, enough)
    return k.loop(k.const(k.i32, 0), bits, 1, k.const(k.i32, 0), function(i, number)
      local higher = number | k.lshr(k.const(k.i32, top), i)
      return k.select(enough(higher), higher, number)
    end)
  end

  -- What is in: {key, column}: those above the key, and with the key those up to the column. At least `most` places hold
  -- something, or all that do are in. key_at, column_at: of a place
  function B.bound(length, most, key_at, column_at)
    local key = search(SIGN, 32, function(number)
      return k.ge(count_places(length, function(i) return ~k.ult(key_at(i), number) end), most)
    end)
    local function is_above(i) return k.ult(key, key_at(i)) end
    local function is_equal(i) return k.eq(key_at(i), key) & k.ne(key, 0) end
    local wanted = most - count_places(length, is_above)
    local last = k.branch(k.gt(count_places(length, is_equal), wanted), function()
      return search(1 << 30, 31, function(number)
        local below = count_places(length, function(i) return is_equal(i) & k.lt(column_at(i), number) end)
        return k.lt(below, wanted)
      end)
    end, function() return k.const(k.i32, 0x7fffffff) end)
    return {key = key, column = last}
  end

  -- Moves what is in to the list's first places, in the order in which it stands; returns how many.
  -- store(place, key, column); is_in_place: in shared memory it writes what other lanes have just read
  function B.compact(length, bound, key_at, column_at, store, is_in_place)
    local before = (k.const(k.i32, 1) << k.lane()) - 1
    return k.loop(k.const(k.i32, 0), length, 32, k.const(k.i32, 0), function(start, kept)
      local i = start + k.lane()
      local exists = k.lt(i, length)
      local at = k.select(exists, i, start)
      local key, column = key_at(at), column_at(at)
      local is_in = k.ult(bound.key, key) | k.eq(key, bound.key) & k.le(column, bound.column)
      is_in = is_in & exists & k.ne(key, 0)
      local votes = k.ballot(is_in)
      if is_in_place then k.warp_sync() end
      k.when(is_in, function() store(kept + k.popcount(votes & before), key, column) end)
      return kept + k.popcount(votes)
    end)
  end

  -- How many places of the list are better than this.
  function B.rank(length, key, column, key_at, column_at)
    return k.loop(k.const(k.i32, 0), length, 1, k.const(k.i32, 0), function(j, sum)
      local other = key_at(j)
      local is_better = k.ult(key, other) | k.eq(key, other) & k.lt(column_at(j), column)
      return sum + k.zext(k.i32, is_better)
    end)
  end

  return B
end
