-- held.lua: stores the raw scores of the columns that a row lists: part targets of forward.
--
-- A bit of the row says whether any of some columns is listed. Where a tile has one, its place in the row's ascending
-- list is searched for, and each of the four threads of the row stores what it holds, from there on to the end of the
-- tile.

return function(k)
  local S = k.import "score" (k)
  local NONE, OF_BIT, OF_WORD = k.abi.TARGET_NONE, k.abi.TARGET_COLUMNS, k.abi.TARGET_COLUMNS * k.abi.TARGET_BITS
  local i64 = function(v) return k.convert(k.i64, v) end

  -- The first place of a row's list whose column is `first` or more.
  local function place_of(list, length, first)
    local range = {low = k.const(k.i32, 0), high = length}
    return k.while_(range, function(now) return k.lt(now.low, now.high) end, function(now)
      local middle = k.lshr(now.low + now.high, 1)
      local is_before = k.lt(k.load(k.i32, list, middle), first)
      return {low = k.select(is_before, middle + 1, now.low), high = k.select(is_before, now.high, middle)}
    end).low
  end

  local function store_row(p, row, first, lane)
    local width, begin = #row.y * 4, i64(row.at) * i64(p.targets)
    local list, places = k.offset(p.list_column, begin * 4), k.offset(p.target_place, begin * 2)
    local to = k.offset(p.score, i64(k.load(k.i32, p.row_of, row.at)) * i64(p.targets) * 4)
    local function next_at(place)
      local is_in = k.lt(place, p.targets)
      return {place = place, column = k.select(is_in, k.load(k.i32, list, k.select(is_in, place, 0)), NONE)}
    end
    k.while_(next_at(place_of(list, p.targets, first)), function(now) return k.ult(now.column - first, width) end,
      function(now)
        local column = now.column - first
        k.when(k.eq(k.lshr(column, 1) & 3, lane & 3), function()
          local score = S.pick(row.y, k.lshr(column, 3) * 2 + (column & 1))
          k.store(to, k.convert(k.i32, k.load(k.i16, places, now.place)), score)
        end)
        return next_at(now.place + 1)
      end)
  end

  local function hold(p, rows, first, lane)
    local word, bit = k.udiv(first, OF_WORD), k.udiv(k.urem(first, OF_WORD), OF_BIT)
    local blocks, hit = (1 << (#rows[1].y * 4 // OF_BIT)) - 1, nil
    for _, row in ipairs(rows) do
      row.at = k.select(row.exists, row.active, p.row_begin)
      local bits = k.load(k.i32, p.target_block, i64(row.at) * i64(p.block_words) + i64(word))
      row.hit = row.exists & k.ne(k.lshr(bits, bit) & blocks, 0)
      hit = hit and hit | row.hit or row.hit
    end
    k.when(k.any(hit), function()
      for _, row in ipairs(rows) do
        k.when(row.hit, function() store_row(p, row, first, lane) end)
      end
    end)
  end

  return {hold = hold}
end
