-- units.lua: units of work handed out to the clusters of a launch.
--
-- They come from a counter that all clusters share, in order, so that neighbours work side by side and none waits for a
-- multiprocessor that other work holds. One thread of the cluster's first CTA takes the next number as soon as everyone
-- has begun the one before, and posts it in every CTA.

return function(k, H)
  local posted, taken, number

  -- A number comes to both CTAs of a cluster as four bytes that `posted` counts, to a CTA alone as an arrival.
  local function expect_number()
    if H.cluster > 1 then k.mbarrier_expect(posted, 4) end
  end

  local U = {bytes = 24}                          -- of shared memory

  function U.place(address)
    posted = address                              -- the number of the next unit stands in `number`
    taken = posted + 8                            -- all have read it; used in the first CTA of the cluster
    number = taken + 8
  end

  -- In one thread, before a fence. warps: who takes numbers, in each CTA
  function U.begin(warps)
    k.mbarrier_init(posted, 1)
    k.mbarrier_init(taken, H.cluster * warps)
  end
  U.expect = expect_number

  -- Hands out the numbers below `units`, and one beyond to every cluster. *turn is 0 before and after.
  function U.dispatch(turn, units)
    local function post()
      local unit = k.atomic_next(turn)
      if H.cluster == 1 then
        k.shared_store(number, unit)
        k.mbarrier_arrive(posted, k.const(k.i1, true))
      else
        for rank = 0, H.cluster - 1 do
          local function there(address) return k.cluster_address(address, k.const(k.i32, rank)) end
          k.store_there(there(number), unit, there(posted))
        end
      end
      return unit
    end
    local last = k.while_({unit = post(), parity = k.const(k.i32, 0)}, function(now) return k.lt(now.unit, units) end,
      function(now)
        k.mbarrier_wait(taken, now.parity)
        return {unit = post(), parity = now.parity ~ 1}
      end)
    local clusters = k.udiv(k.reread_nctaid(), H.cluster)
    k.when(k.eq(last.unit, units + clusters - 1), function() k.store(turn, 0, k.const(k.i32, 0)) end)
  end

  -- The next unit, in the feeder's thread or in all threads of a warp. parity: 0 for the first, then in turn.
  local function take(parity, count, feeds)
    k.mbarrier_wait(posted, parity)
    local unit = H.uniform(k.shared_load(k.i32, number))
    if feeds then expect_number() end
    local tells = k.lt(unit, count())             -- behind the last unit the first CTA may be gone
    if not feeds then tells = tells & k.eq(k.reread_tid() & 31, 0) end
    if H.cluster == 1 then k.mbarrier_arrive(taken, tells)
    else k.mbarrier_arrive_there(k.cluster_address(taken, k.const(k.i32, 0)), tells) end
    return unit
  end

  -- Runs body(unit, state) -> state over the units of this cluster. count(): how many units the grid has.
  function U.over(count, state, body, feeds)
    local start = {unit = take(k.const(k.i32, 0), count, feeds), parity = k.const(k.i32, 1), state = state}
    return k.while_(start, function(now) return k.lt(now.unit, count()) end, function(now)
      local after = body(now.unit, now.state)
      return {unit = take(now.parity, count, feeds), parity = now.parity ~ 1, state = after}
    end).state
  end

  -- Band and column of a unit: `raster` bands at a time walk along the columns together, for what they share in L2.
  function U.walk(unit, bands, across, raster)
    local group = across * raster
    local sweep = unit // group
    local inside = unit - sweep * group
    local height = k.min(bands - sweep * raster, raster)
    local column = inside // height
    return sweep * raster + (inside - column * height), column
  end

  return U
end
