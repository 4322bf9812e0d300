-- added.lua: what products add to gradients of 16 bits where a loss has a derivative by the mean of a row's scores
-- (mean.lua), in fp32, before their one rounding: of grad_hidden each[a]·Σ w_v, of grad_weight Σ each[a]·h_a.

return function(k, spec)
  local A = {}

  -- add(x, y, n): the neighbours x and y of columns n and n + 1 of a row with the term added. n is even; of the vector
  -- load(n) has both elements
  local function adder(load, factor)
    return function(x, y, n)
      local by = load(n)
      if factor then return k.fma(factor, by[1], x), k.fma(factor, by[2], y) end
      return x + by[1], y + by[2]
    end
  end

  local function from_memory(vector)
    return function(n) return k.load_vector(k.f32, 2, vector, n >> 1, {const = true}) end
  end

  -- Both vectors, then each, behind the words that come before them.
  local function part(p, i)
    return k.offset(p.scale_pair, (p.depth + k.abi.MEAN_ADDED) * (4 * i) + k.abi.MEAN_ADDED * 4)
  end

  -- The vector, a word a column: "hidden" or "weight" says of which gradient.
  function A.vector(p, of) return part(p, of == "hidden" and 1 or 0) end

  -- a: active row; load: where a kernel has the vector elsewhere than in memory
  function A.of_hidden(p, a, load)
    return adder(load or from_memory(A.vector(p, "hidden")), k.load(k.f32, part(p, 2), a))
  end
  function A.of_weight(p, load) return adder(load or from_memory(A.vector(p, "weight"))) end

  -- Without the term.
  function A.nothing() return function(x, y) return x, y end end

  return A
end
