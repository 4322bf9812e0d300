-- sweep.lua: the columns of a row as the threads of a CTA take them: a vector at a time, `unroll` vectors of a block
-- under way at once; then the vectors of the last block that exist; then the columns behind the last whole vector.
--
-- pace: {threads, unroll}. vector: columns of one. load(first) -> values of the vector that begins at column `first`.
-- visit(state, vectors) -> state, where a vector is {first = column, inside = nil or i1, values}; at the end one(state,
-- column) -> state.

return function(k, pace, vector, columns, state, load, visit, one)
  local step = pace.threads * vector
  local block_columns = step * pace.unroll
  local whole = columns // block_columns * block_columns
  local last = columns // vector * vector
  local function block(base, check)
    local vectors = {}
    for i = 1, pace.unroll do
      local first = base + (i - 1) * step
      local inside = check and k.lt(first, last) or nil
      vectors[i] = {first = first, inside = inside, at = inside and k.select(inside, first, 0) or first}
    end
    for i = 1, pace.unroll do vectors[i].values = load(vectors[i].at) end
    return vectors
  end
  local mine = k.tid() * vector
  state = k.loop(k.const(k.i32, 0), whole, block_columns, state, function(base, inner)
    return visit(inner, block(base + mine, false))
  end)
  state = k.branch(k.lt(whole + mine, last), function() return visit(state, block(whole + mine, true)) end,
    function() return state end)
  local column = last + k.tid()
  return k.branch(k.lt(column, columns), function() return one(state, column) end, function() return state end)
end
