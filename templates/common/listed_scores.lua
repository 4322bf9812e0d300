-- listed_scores.lua: scores of the columns that each row lists: entry list_scores of runtime/kernel/abi.h.
--
--   x[e] = h·w[list_column[e]] + b
--
-- A warp takes 16 entries of its row at a time: 16 rows of weight times the row's hidden, which stands in all 8 columns
-- of the second operand of mma.
--
-- Bits and loads: dots.lua.

local WARPS, GROUP = 2, 16          -- of a CTA, as lists of 20 entries fill; entries of a group, which one warp takes
local MIN_CTAS = 8                  -- for more ptxas gives up that loads are under way together

return function(k, spec)
  local S, D = k.import "score" (k), k.import "dots" (k, spec)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]

  -- Of entries lane/4 and lane/4 + 8 of a group; behind the last entry that one again.
  local function scores_of(p, a, row, first, group)
    local quad = k.lshr(k.lane(), 2)
    local function column(i)
      return function()
        return k.load(k.i32, p.list_column, first + k.min(group.begin + i, group.last), {const = true})
      end
    end
    return D.scores(p, column(quad), column(quad + 8), function() return row end, a)
  end

  local function store_score(p, a, e, acc)
    local x = k.branch(k.is_null(p.bias), function() return acc end, function()
      return acc + k.convert(k.f32, k.load(element, p.bias, k.load(k.i32, p.list_column, e, {const = true})))
    end)
    k.when(k.eq(e, k.load(k.i32, p.list_target, a)), function() k.store(p.zy, a, x) end)
    local score = k.branch(k.ne(p.capped, 0), function() return S.cap(x, p.cap_in) end, function() return x end)
    k.store(p.list_score, e, score)
  end

  k.kernel {entry = "list_scores", threads = WARPS * 32, min_ctas = MIN_CTAS, body = function(p)
    local a = k.ctaid()
    k.exit_if(k.ge(a, k.load(k.i32, p.count, 0)))
    local row, length = k.load(k.i32, p.index, a), k.load(k.i32, p.list_length, a)
    k.when(k.lt(length, 0) & k.eq(k.tid(), 0), function() k.store(p.zy, a, k.const(k.f32, 0.0 / 0.0)) end)
    local first = k.convert(k.i32, k.load(k.i64, p.offsets, row))
    k.loop(k.warp() * GROUP, length, WARPS * GROUP, nil, function(begin)
      local group = {begin = begin, last = length - 1}
      local acc = scores_of(p, a, row, first, group)
      local half = k.lane() & 3                      -- columns are alike: lanes 0 and 1 of a quad take one result each
      local i = begin + k.lshr(k.lane(), 2) + half * 8
      k.when(k.lt(half, 2) & k.lt(i, length), function()
        store_score(p, a, first + i, k.select(k.eq(half, 0), acc[1], acc[3]))
      end)
    end)
  end}
end
