-- head.lua: the operands of the score product x = h·wᵀ + b, the same in every kernel that forms scores.
--
-- Operands are described in engine.lua. Rows are active rows [first, last); columns are vocabulary columns, of which
-- those from column_end on are read as zero. With an adapter x = h·wᵀ + u·bᵀ: behind the steps of D come those of its
-- rank, from lora_u and lora_b.

return function(k, spec, M)
  local H = {}
  local aligned = spec.alignment >= 16

  -- D, a constant where the kernel is specialised for it.
  function H.depth(p) return spec.hidden > 0 and spec.hidden or p.depth end

  local adapted = spec.parts.lora or spec.kind == "dz_lora"

  local function own_steps(p) return (H.depth(p) + (M.depth - 1)) // M.depth end

  -- Steps along K.
  function H.steps(p)
    if not adapted then return own_steps(p) end
    return own_steps(p) + (p.rank + (M.depth - 1)) // M.depth
  end

  -- An operand whose rows go on in those of the adapter. row(key, at): where a row starts; more(key, at): in the adapter
  local function with_adapter(p, operand, row, more)
    if not adapted then return operand end
    local depth, own = H.depth(p), own_steps(p)
    local function is_own(at) return k.lt(at.step, own) end
    local function bytes(step) return k.convert(k.i64, step) * (M.depth * M.bytes) end
    operand.address, operand.base, operand.row_bytes = nil, nil, nil
    operand.address_at = function(key, at)
      return k.branch(is_own(at), function() return k.offset(row(key, at), bytes(at.step)) end,
        function() return k.offset(more(key, at), bytes(at.step - own)) end)
    end
    operand.limit = function(at)
      return k.select(is_own(at), depth - at.step * M.depth, p.rank - (at.step - own) * M.depth)
    end
    return operand
  end

  function H.hidden(p, first, last)
    local depth = H.depth(p)
    local function row_of(active)
      local source = k.load(k.i32, p.index, k.select(k.lt(active, last), active, p.row_begin))
      return k.offset(p.hidden, k.convert(k.i64, source) * p.hidden_stride * M.bytes)
    end
    return with_adapter(p, {
      major = "k", size = M.rows, aligned = aligned,
      key = function(row) return first + row end,
      address = row_of,
      step_bytes = k.const(k.i64, M.depth * M.bytes), tile_bytes = k.const(k.i64, 0),
      valid = function(active) return k.lt(active, last) end,
      limit = function(at) return depth - at.step * M.depth end,
    }, row_of, function(active)
      return k.offset(p.lora_u, k.convert(k.i64, active) * (k.convert(k.i64, p.rank) * M.bytes))
    end)
  end

  -- column(row): of tile row `row`; apart: see engine.lua; per_tile: columns from one tile of the stream to the
  -- next
  function H.weight(p, column, column_end, apart, per_tile)
    local depth = H.depth(p)
    local row_bytes = p.weight_stride * M.bytes
    local function column_of(at_start, at) return per_tile and at_start + at.tile * per_tile or at_start end
    local function row_of(base, bytes)
      return function(at_start, at) return k.offset(base, k.convert(k.i64, column_of(at_start, at)) * bytes) end
    end
    return with_adapter(p, {
      major = "k", size = M.columns, aligned = aligned,
      key = column, apart = apart, base = p.weight, row_bytes = row_bytes,
      step_bytes = k.const(k.i64, M.depth * M.bytes), tile_bytes = row_bytes * (per_tile or 0),
      valid = function(at_start, at) return k.lt(column_of(at_start, at), column_end) end,
      limit = function(at) return depth - at.step * M.depth end,
    }, row_of(p.weight, row_bytes), adapted and row_of(p.lora_b, p.lora_b_stride * M.bytes))
  end

  -- x = acc + b, for accumulators whose columns start at `first`.
  function H.add_bias(p, acc, first, column_end)
    if not spec.bias then return acc end
    local bias = {}
    for ni = 0, M.ni - 1 do
      bias[ni] = {}
      for e = 0, 1 do
        local column = first + M.column(ni, e)
        bias[ni][e] = k.branch(~k.is_null(p.bias) & k.lt(column, column_end),
          function() return k.convert(k.f32, k.load(M.element, p.bias, column)) end,
          function() return k.const(k.f32, 0.0) end)
      end
    end
    return M.map(acc, function(v, _, _, ni, e) return v + bias[ni][e] end)
  end

  return H
end
