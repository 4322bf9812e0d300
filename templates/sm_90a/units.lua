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
    number = taken + 8                            -- and a word that nobody writes
  end

  -- In one thread, before a fence. takers: warps and threads of the cluster that take numbers
  function U.begin(takers)
    k.mbarrier_init(posted, 1)
    k.mbarrier_init(taken, takers)
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

  -- The next unit, and whether there is one. parity: 0 for the first, then in turn. who: "producer", its thread;
  -- "thread", another one by itself; or "warp", all threads of it. Of those only lane 0 of a warp reads the number and
  -- so signals that it was read; the others read the word behind, which nobody writes (a branch would cost dz spills).
  local function take(parity, units, who)
    local lane = k.reread_tid() & 31
    local unit
    k.mbarrier_wait(posted, parity)
    if who ~= "warp" then
      unit = k.shared_load(k.i32, number)
      if who == "producer" then expect_number() end
    else
      unit = H.uniform(k.shuffle_idx(k.shared_load(k.i32, number + k.min(lane, 1) * 4), 0))
    end
    local is_unit = k.lt(unit, units())           -- behind the last one the first CTA may be gone
    local signals = who ~= "warp" and is_unit or is_unit & k.eq(lane, 0)
    if H.cluster == 1 then k.mbarrier_arrive(taken, signals)
    else k.mbarrier_arrive_there(k.cluster_address(taken, k.const(k.i32, 0)), signals) end
    return unit, is_unit
  end

  -- Runs body(unit, state, q) -> state over the units of this cluster. problem() -> q: worked out anew for each unit,
  -- q.units is how many the grid has.
  function U.over(problem, state, body, who)
    local unit, q
    local function units()
      q = problem()
      return q.units
    end
    return k.while_({parity = k.const(k.i32, 0), state = state}, function(now)
      local is_unit
      unit, is_unit = take(now.parity, units, who)
      return is_unit
    end, function(now)
      return {parity = now.parity ~ 1, state = body(unit, now.state, q)}
    end).state
  end

  -- Row panel and column of a unit. Panels go over the columns together, for what they share in L2: at most `raster` at
  -- a time, and about as many in each of their sweeps.
  function U.rasterise(unit, panels, across, raster)
    local sweeps = k.max((panels + (raster - 1)) // raster, 1)
    local most = k.udiv(panels + (sweeps - 1), sweeps)
    local group = across * most
    local sweep = k.udiv(unit, group)
    local inside = unit - sweep * group
    local height = k.min(panels - sweep * most, most)
    local column = k.udiv(inside, height)
    return sweep * most + (inside - column * height), column
  end

  return U
end
