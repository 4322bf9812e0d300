-- ring.lua: the pipeline: stages of shared memory that tensor copies fill in turn, unit by unit.
--
-- A stage holds H.depth of K: rows of 128 bytes, swizzled in groups of 8, first those of A, then those of B. A box has
-- H.box elements along a row; MN-major, a row runs along M or N, and the next H.box of it follow as another box.

return function(k, H, units)
  local R = {}
  local base, full, empty

  function R.place(start, barriers)
    base, full, empty = start, barriers, barriers + H.stages * 8
    R.base, R.full, R.empty = base, full, empty
  end
  R.barrier_bytes = H.stages * 16

  -- In one thread, before a fence. arrivals: the threads that signal a free stage
  function R.begin(arrivals)
    for stage = 0, H.stages - 1 do
      k.mbarrier_init(full + stage * 8, 1)
      k.mbarrier_init(empty + stage * 8, arrivals)
    end
  end

  -- The pipeline state behind this one in a ring of n stages: {stage, parity} of its next use.
  function R.next_place(at, n)
    local up = at.stage + 1
    local wrap = k.eq(up, n)
    return {stage = k.select(wrap, 0, up), parity = at.parity ~ k.zext(k.i32, wrap)}
  end

  local function load(operand, part, offset, to, ready, step, cast)
    local height = operand.major == "mn" and H.box or operand.box or part
    local bytes = operand.major == "mn" and H.depth * 128 or height * 128
    local map, at, first = operand.map, operand.at, step
    if operand.more then
      local beyond = k.ge(step, operand.more.from)
      map, at = k.select(beyond, operand.more.map, map), k.select(beyond, operand.more.at, at)
      first = k.select(beyond, step - operand.more.from, step)
    end
    for i = 0, part // height - 1 do
      local x, y = first * H.depth, at + offset + i * height
      if operand.major == "mn" then x, y = y, x end
      k.tensor_copy(map, to + i * bytes, ready, x, y, {cast = cast, evict = operand.evict, pair = H.pair})
    end
  end

  -- Expects what a CTA loads of each operand -> the barrier that counts it. Of a pair (engine.lua of sm_100f) that is
  -- the first CTA's, which multiplies for both and expects what both load.
  local function expect(ready, of_a, of_b)
    if not H.pair then
      k.mbarrier_expect(ready, of_a + of_b)
      return ready
    end
    k.when(k.eq(H.rank(), 0), function() k.mbarrier_expect(ready, of_a * 2 + of_b) end)
    return k.cluster_address(ready, k.const(k.i32, 0))
  end

  -- Loads the stages of one tile. a, b: {map, major, at, box, rows, evict, more}: from row `at` of C's rows or columns
  -- on, in boxes of `box` rows (default: all that a CTA loads), MN-major of H.box columns; rows: of a's only box, if
  -- not all, 0 for none. more: {map, at, from}, from that step of K on a matrix that goes on in another's columns.
  -- columns: of the tile, if not all that fit
  function R.produce(at, steps, a, b, columns)
    columns = columns or H.columns
    local part, rank = columns // H.cluster, H.rank()
    local cast = H.cluster > 1 and not H.pair and (1 << H.cluster) - 1 or nil
    return k.loop(k.const(k.i32, 0), steps, 1, at, function(step, now)
      local ready = full + now.stage * 8
      k.mbarrier_wait(empty + now.stage * 8, now.parity)
      ready = expect(ready, a.rows and a.rows * 128 or H.a_bytes, columns * 128)
      local to = base + now.stage * H.stage_bytes
      local function load_rows() load(a, H.rows, 0, to, ready, step, nil) end
      if a.rows then k.when(k.gt(a.rows, 0), load_rows) else load_rows() end
      load(b, part, rank * part, to + H.a_bytes + (H.pair and 0 or rank * (part * 128)), ready, step, cast)
      return R.next_place(now, H.stages)
    end)
  end

  -- Runs body(unit, pipeline state) -> pipeline state over the units. Behind the last: a CTA must not end while its
  -- neighbour may still cast into it or arrive at its barriers.
  function R.produce_units(problem, body)
    local at = units.over(problem, {stage = k.const(k.i32, 0), parity = k.const(k.i32, 1)}, body, "producer")
    if H.cluster == 1 then return end
    for _ = 1, H.stages do
      k.mbarrier_wait(empty + at.stage * 8, at.parity)
      at = R.next_place(at, H.stages)
    end
  end

  return R
end
