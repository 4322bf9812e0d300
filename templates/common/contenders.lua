-- contenders.lua: lists the columns of a row whose score is at least its floor, and counts those whose score is at least
-- its mark, the least above the target's: part top of forward.
--
--   t >= floor[r] -> (v, t) at place count[r]++ of the row's list;   Σ (t >= mark[r]) -> above[r]
--
-- r: active row less the first one of the launch. low[r] is the lower of both, so a block of a row without either costs
-- one comparison with its largest t. t is the product rounded once, everywhere the same bits. A list that has overflowed
-- gets no more; its row is lost, which depends on nothing but its floor and scores.

return function(k)
  local S = k.import "score" (k)
  local nan = 0.0 / 0.0
  local i64 = function(v) return k.convert(k.i64, v) end

  -- The bits of the columns of a block whose score is `from` or more.
  local function mask_of(block, scale, from)
    local mask = k.const(k.i32, 0)
    for i, y in ipairs(block.y) do
      mask = mask | (k.zext(k.i32, k.ge(y * scale, from)) << (i - 1))
    end
    return mask
  end

  -- The bits of those that exist: pairs of columns stand 8 apart.
  local function real_of(p, block)
    local left = k.min(k.max(p.vocab_valid - block.column, 0), #block.y * 4)
    return (k.const(k.i32, 1) << (k.lshr(left, 3) * 2 + k.min(left & 7, 2))) - 1
  end

  local function store_block(p, row, block, scale, mask)
    local first = k.atomic_add(p.top_count, row, k.popcount(mask))
    local list = i64(row) * i64(p.top_places)
    k.while_({mask = mask, place = first}, function(now) return k.ne(now.mask, 0) & k.lt(now.place, p.top_places) end,
      function(now)
        local i = k.popcount((now.mask & -now.mask) - 1)
        local at = list + i64(now.place)
        k.store(p.top_column, at, p.column_begin + block.column + ((k.lshr(i, 1) << 3) | (i & 1)))
        k.store(p.top_score, at, S.pick(block.y, i) * scale)
        return {mask = now.mask & (now.mask - 1), place = now.place + 1}
      end)
  end

  local function any_from(blocks, from)
    local hit
    for _, block in ipairs(blocks) do
      local reaches = k.ge(block.top, from)
      hit = hit and hit | reaches or reaches
    end
    return k.any(hit)
  end

  -- How many columns of these are at least `mark`.
  local function count_above(p, row, scale, blocks, mark)
    local above = k.const(k.i32, 0)
    for _, block in ipairs(blocks) do
      above = above + k.popcount(mask_of(block, scale, mark) & real_of(p, block))
    end
    for _, lane in ipairs {1, 2} do above = above + k.shuffle_xor(above, lane) end
    k.when(k.eq(k.lane() & 3, 0) & k.ne(above, 0), function() k.atomic_add(p.top_above, row, above) end)
  end

  local function list(p, row, scale, blocks, floor)
    floor = k.select(k.gt(k.load(k.i32, p.top_count, row), p.top_places), nan, floor)
    for _, block in ipairs(blocks) do
      k.when(k.ge(block.top, floor) & k.ge(block.column, p.top_from), function()
        local mask = mask_of(block, scale, floor) & real_of(p, block)
        k.when(k.ne(mask, 0), function() store_block(p, row, block, scale, mask) end)
      end)
    end
  end

  -- active: a row, which exists below `last`.
  local function meet(p, active, last, scale, blocks)
    local exists = k.lt(active, last)
    local row = k.select(exists, active - p.row_begin, 0)
    local function read(ptr) return k.select(exists, k.load(k.f32, ptr, row), nan) end
    k.when(any_from(blocks, read(p.top_low)), function()
      local function each(ptr, f)
        local from = read(ptr)
        k.when(any_from(blocks, from), function() f(p, row, scale, blocks, from) end)
      end
      each(p.top_mark, count_above)
      each(p.top_floor, list)
    end)
  end

  return {meet = meet, by_columns = true}
end
