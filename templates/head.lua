-- head.lua: the operands of the score product x = h·wᵀ + b, the same in every kernel that forms scores.
--
-- rows = {first, last}: active rows [first, last) of the CTA's band; columns(row, at) -> the vocabulary column of tile row
-- `row` of the weight tile; columns from column_end on are read as zero.

return function(k, spec, M)
  local H = {}
  local aligned = spec.alignment >= 16

  -- D, a constant where the kernel is specialised for it.
  function H.depth(p) return spec.hidden > 0 and spec.hidden or p.depth end

  function H.hidden(p, rows)
    local depth = H.depth(p)
    return {
      major = "k", size = M.rows, aligned = aligned, base = p.hidden,
      address = function(row, at)
        local active = rows.first + row
        local valid = k.lt(active, rows.last)
        local source = k.load(k.i32, p.index, k.select(valid, active, p.row_begin), {const = true})
        local element = k.convert(k.i64, source) * p.hidden_stride + k.convert(k.i64, at.step * M.depth)
        return k.offset(p.hidden, element * M.bytes), valid
      end,
      limit = function(at) return depth - at.step * M.depth end,
    }
  end

  function H.weight(p, columns, column_end)
    local depth = H.depth(p)
    return {
      major = "k", size = M.columns, aligned = aligned, base = p.weight,
      address = function(row, at)
        local column = columns(row, at)
        local element = k.convert(k.i64, column) * p.weight_stride + k.convert(k.i64, at.step * M.depth)
        return k.offset(p.weight, element * M.bytes), k.lt(column, column_end)
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
