-- head.lua: the operands of the score product x = h·wᵀ + b, the same in every kernel that forms scores.
--
-- Operands are described in engine.lua. Rows are active rows [first, last); columns are vocabulary columns, of which
-- those from column_end on are read as zero.

return function(k, spec, M)
  local H = {}
  local aligned = spec.alignment >= 16

  -- D, a constant where the kernel is specialised for it.
  function H.depth(p) return spec.hidden > 0 and spec.hidden or p.depth end

  function H.hidden(p, first, last)
    local depth = H.depth(p)
    return {
      major = "k", size = M.rows, aligned = aligned,
      key = function(row) return first + row end,
      address = function(active)
        local source = k.load(k.i32, p.index, k.select(k.lt(active, last), active, p.row_begin))
        return k.offset(p.hidden, k.convert(k.i64, source) * p.hidden_stride * M.bytes)
      end,
      step_bytes = k.const(k.i64, M.depth * M.bytes), tile_bytes = k.const(k.i64, 0),
      valid = function(active) return k.lt(active, last) end,
      limit = function(at) return depth - at.step * M.depth end,
    }
  end

  -- column(row): of tile row `row`; per_copy: see engine.lua; per_tile: columns from one tile of the stream to the
  -- next
  function H.weight(p, column, column_end, per_copy, per_tile)
    local depth = H.depth(p)
    local row_bytes = p.weight_stride * M.bytes
    return {
      major = "k", size = M.columns, aligned = aligned,
      key = column, per_copy = per_copy, base = p.weight, row_bytes = row_bytes,
      step_bytes = k.const(k.i64, M.depth * M.bytes), tile_bytes = row_bytes * (per_tile or 0),
      valid = function(at_start, at)
        return k.lt(per_tile and at_start + at.tile * per_tile or at_start, column_end)
      end,
      limit = function(at) return depth - at.step * M.depth end,
    }
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
