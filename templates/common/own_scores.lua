-- own_scores.lua: scores of the rows' own targets, before forward: entries tail_target and top_target of
-- runtime/kernel/abi.h.
--
--   zy = h·w_y + b, with the bits of sm_80's forward
--
-- A warp takes 8 rows. Of the products of their targets and them those of a row and its own target are wanted: lane
-- l/4 = row, column 2(l%4)+e.

local ROWS, WARPS, CTAS = 8, 2, 8 -- of a warp, a CTA, a multiprocessor: for more ptxas gives up loads under way together

return function(k, spec, name)
  local D = k.import "dots" (k, spec)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]

  k.kernel {entry = name, threads = WARPS * 32, min_ctas = CTAS, body = function(p)
    local rows = k.min(k.load(k.i32, p.count, 0), p.row_end) - p.row_begin
    local first = (k.ctaid() * WARPS + k.warp()) * ROWS
    k.exit_if(k.ge(first, rows))
    local quad = k.lshr(k.lane(), 2)
    local a = p.row_begin + k.min(first + quad, rows - 1)
    local target = k.load(k.i32, p.local_target, a)
    local column = k.max(target, 0)
    local function own() return column end
    local acc = D.scores(p, own, own, function() return k.load(k.i32, p.index, a) end, a)
    local x = k.select(k.ne(quad & 1, 0), acc[2], acc[1])
    local is_own = k.eq(k.lane() & 3, k.lshr(quad, 1)) & k.lt(first + quad, rows)
    k.when(is_own & k.ge(target, 0), function()
      k.store(p.zy, a, k.branch(k.is_null(p.bias), function() return x end,
        function() return x + k.convert(k.f32, k.load(element, p.bias, target)) end))
    end)
  end}
end
