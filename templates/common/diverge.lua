-- diverge.lua: how far two rows of scores that exist are apart, and the gradient of one of them: one CTA a row.
--
--   q = softmax a·x, the student's;  p = softmax b·y, the teacher's;  D = program(log p, log q)     (loss_levels.lua)
--   dx_v = a·(u·(G_v - q_v·Σ G/Σ q) + g·([v = target] - q_v) - e·q_v·(log q_v + H)),  G_v = ∂D/∂log q_v
--
-- Shapes: scores, teacher (n,V) -> values (n,6), grad_scores (n,V); upstream u, grad_logprob g, grad_entropy e,
-- scale_rows a, teacher_scale_rows b (n); state (n,DIVERGE_WORDS).
-- A pass over both rows for their log-sum-exps, one for the sums of each level of the program, and one for dx: it alone
-- where state has what the others found. Sums of a vocabulary's shards may be added up between them. What is
-- of a column is f32, a log-probability log 2·((x·unit - high) - low), high + low the log-sum-exp in log2 units, the
-- product exact (score.lua); what is of the row is f64. Σ G comes with the sums, as Σ_j by_sum_j·Σ_v ∂(operand of
-- S_j)/∂log q_v, in the order of Σ q: equal rows give 0. A thread's columns, lanes and warps add up in an order that
-- depends on V alone.

local LN2, LOG2E = 0.6931471805599453, 1.4426950408889634
local PACE = {threads = 256, unroll = 2}
local LOWEST_LOG = -1e4  -- instead of -inf, whose probability is 0
local WARPS, VECTOR = PACE.threads // 32, 4

return function(k, spec)
  local S, F = k.import "score" (k), k.import "math64" (k)
  local own = k.import "loss" (k, true)
  local P = k.import "loss_levels" (k, spec.loss, own)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.out_dtype]
  local element_bytes = spec.out_dtype == "fp32" and 4 or 2
  local aligned = spec.alignment >= 16
  local infinity, nan = 1.0 / 0.0, 0.0 / 0.0
  local zero, one = k.const(k.f32, 0.0), k.const(k.f64, 1.0)
  local f64 = function(v) return k.convert(k.f64, v) end

  ------------------------------------------------------------------------------------------------ columns of a row
  local function load_vector(row, first)
    if aligned then return k.load_vector(k.f32, VECTOR, row, k.udiv(first, VECTOR)) end
    local out = {}
    for i = 1, VECTOR do out[i] = k.load(k.f32, row, first + (i - 1)) end
    return out
  end

  local function rounded(v) return element == k.f32 and v or k.convert(element, v) end

  local function store_vector(out, first, values)
    if not aligned then
      for i = 1, VECTOR do k.store(out, first + (i - 1), rounded(values[i])) end
    elseif element == k.f32 then
      k.store_vector(out, k.udiv(first, VECTOR), values)
    else
      local words = {k.pack(element, values[1], values[2]), k.pack(element, values[3], values[4])}
      k.store_vector(out, k.udiv(first, VECTOR), words)
    end
  end

  -- visit(state, at) -> state of some columns of both rows, lists: at.column, their numbers, at.x and at.y, their
  -- scores, and at.inside, nil or whether there is such a column.
  local function sweep(p, rows, state, visit)
    local function load(first) return {load_vector(rows.x, first), load_vector(rows.y, first)} end
    return k.import "sweep" (k, PACE, VECTOR, p.vocab, state, load, function(inner, vectors)
      local at = {column = {}, x = {}, y = {}, inside = vectors[1].inside and {}, vectors = vectors}
      for _, vector in ipairs(vectors) do
        for i = 1, VECTOR do
          local place = #at.column + 1
          at.column[place], at.x[place], at.y[place] = vector.first + (i - 1), vector.values[1][i], vector.values[2][i]
          if at.inside then at.inside[place] = vector.inside end
        end
      end
      return visit(inner, at)
    end, function(inner, column)
      return visit(inner, {column = {column}, x = {k.load(k.f32, rows.x, column)}, y = {k.load(k.f32, rows.y, column)}})
    end)
  end

  ---------------------------------------------------------------------------------------------- over the threads
  local function slot(warp, i, count) return k.shared() + (warp * count + (i - 1)) * 4 end

  -- The values of each warp's first lane, a list of f32 and i32, folded by merge in every thread.
  local function over_warps(list, merge)
    k.barrier() -- what was there has been read
    k.when(k.eq(k.lane(), 0), function()
      for i, value in ipairs(list) do k.shared_store(slot(k.warp(), i, #list), value) end
    end)
    k.barrier()
    local function of_warp(warp)
      local out = {}
      for i, value in ipairs(list) do out[i] = k.shared_load(value.type, slot(warp, i, #list)) end
      return out
    end
    return merge(of_warp)
  end

  -- f32 shares -> f64 totals.
  local function totals(shares)
    for i, share in ipairs(shares) do
      for _, mask in ipairs {16, 8, 4, 2, 1} do share = share + k.shuffle_xor(share, mask) end
      shares[i] = share
    end
    return over_warps(shares, function(of_warp)
      local function wide(warp)
        local out = of_warp(warp)
        for i, value in ipairs(out) do out[i] = f64(value) end
        return out
      end
      return k.loop(k.const(k.i32, 1), WARPS, 1, wide(0), function(warp, sum)
        local more = wide(warp)
        for i, value in ipairs(more) do more[i] = sum[i] + value end
        return more
      end)
    end)
  end

  -- Of both rows a table of f32 and i32, by name, {x, y}: what lanes and warps have, folded by merge, in every thread.
  local function fold(both, names, merge)
    local function of_lists(list)
      local out = {x = {}, y = {}}
      for i, name in ipairs(names) do out.x[name], out.y[name] = list[i], list[#names + i] end
      return out
    end
    local function merge_both(a, b) return {x = merge(a.x, b.x), y = merge(a.y, b.y)} end
    for _, mask in ipairs {16, 8, 4, 2, 1} do
      local other = {x = {}, y = {}}
      for _, name in ipairs(names) do
        other.x[name], other.y[name] = k.shuffle_xor(both.x[name], mask), k.shuffle_xor(both.y[name], mask)
      end
      both = merge_both(both, other)
    end
    local list = {}
    for i, name in ipairs(names) do list[i], list[#names + i] = both.x[name], both.y[name] end
    return over_warps(list, function(of_warp)
      return k.loop(k.const(k.i32, 1), WARPS, 1, of_lists(of_warp(0)), function(warp, total)
        return merge_both(total, of_lists(of_warp(warp)))
      end)
    end)
  end

  ------------------------------------------------------------------------------------------------ log-sum-exps
  -- Sums of exponentials of all columns, {x, y} of {m, s}.
  local function ends_of(p, rows, units)
    local empty = {m = k.const(k.f32, S.lowest), s = zero}
    local ends = sweep(p, rows, {x = empty, y = empty}, function(state, at)
      local inside, out = at.inside and function(i) return at.inside[i] end, {}
      for _, row in ipairs {"x", "y"} do
        local sum = S.accumulate({m = state[row].m, s = state[row].s}, at[row], units[row].value, false, inside)
        out[row] = {m = sum.m, s = sum.s}
      end
      return out
    end)
    return fold(ends, {"m", "s"}, function(one, other)
      local sum = S.merge({m = one.m, s = one.s}, {m = other.m, s = other.s})
      return {m = sum.m, s = sum.s}
    end)
  end

  -- Whether the largest score is beyond the limit, or there is none above -inf; not of a row that has a NaN alone.
  local function is_dead(sum) return k.gt(sum.m, S.limit) | ~S.is_alive(sum) & k.eq(sum.s, sum.s) end

  -- The log-sum-exp in nats, f64, and in log2 units as two f32; NaN where there is none.
  local function lse_of(sum, alive)
    return k.select(alive & k.eq(sum.s, sum.s), f64(sum.m) + F.log2(f64(sum.s)), k.const(k.f64, nan))
  end

  local function split(lse, unit)
    local high = k.convert(k.f32, lse)
    return {value = lse * LN2, high = high, low = k.convert(k.f32, lse - f64(high)), unit = unit.value}
  end

  -- What scores are multiplied by, in log2 units, and its sign.
  local function unit_of(scale, scale_rows, row)
    scale = k.branch(k.is_null(scale_rows), function() return scale end,
      function() return k.load(k.f32, scale_rows, row) end)
    local sign = k.select(k.gt(scale, 0.0), k.const(k.f32, 1.0), k.select(k.lt(scale, 0.0), k.const(k.f32, -1.0), 0.0))
    return {scale = scale, value = k.convert(k.f32, f64(scale) * LOG2E), sign = sign}
  end

  ------------------------------------------------------------------------------------------------ best columns
  -- The largest score of some columns, times the sign of its unit, and the first column that has it.
  local NO_BEST = {top = k.const(k.f32, -infinity), column = k.const(k.i32, 0)}

  local function better(a, b)
    local first = k.gt(a.top, b.top) | k.eq(a.top, b.top) & k.lt(a.column, b.column)
    return {top = k.select(first, a.top, b.top), column = k.select(first, a.column, b.column)}
  end

  local function add_best(best, at, scores, unit)
    local values, largest = {}, nil
    for i, score in ipairs(scores) do
      values[i] = score * unit.sign
      if at.inside then values[i] = k.select(at.inside[i], values[i], -infinity) end
      largest = largest and k.max(largest, values[i]) or values[i]
    end
    return k.branch(k.gt(largest, best.top), function()
      local top, column = best.top, best.column
      for i, value in ipairs(values) do
        local is_better = k.gt(value, top)
        top, column = k.select(is_better, value, top), k.select(is_better, at.column[i], column)
      end
      return {top = top, column = column}
    end, function() return best end)
  end

  ------------------------------------------------------------------------------------------------ the program
  local function leaves_of(p)
    return {
      constant = function(node) return k.const(k.f64, node.value) end,
      parameter = function(node) return p["parameter" .. node.index - 1] end,
      input = function(node)
        local name = spec.loss.inputs[node.index]
        if name ~= "weight" then error("loss: a divergence has no " .. name) end
        return one
      end,
    }
  end

  -- Of a score the log-probability, and the probability.
  local function of_score(score, lse)
    local log2 = k.fma(score, lse.unit, -lse.high) - lse.low
    return log2 * LN2, own.exp2(log2)
  end

  -- A column's place, p and q.
  local function of_column(place, level, lse, x, y)
    local log_q, q = of_score(x, lse.x)
    local log_p, p = of_score(y, lse.y)
    local logs, shares = {target_logprob = log_q, teacher_logprob = log_p}, {target_logprob = q, teacher_logprob = p}
    local at = P.of_target(place, level, {
      input = function(node) return logs[spec.loss.inputs[node.index]] end,
      exp = function(node)
        local operand = spec.loss.nodes[node[1]]
        return operand.op == "input" and shares[spec.loss.inputs[operand.index]] or nil
      end})
    return {at = at, log_q = log_q, q = q, p = p}
  end

  -- q·log q, 0 where q is.
  local function by_log(c) return c.q * k.max(c.log_q, LOWEST_LOG) end

  -- What is added up in the pass of a level: {key, function of a column's}.
  local function terms_of(level)
    local terms = {}
    local function add(key, of) terms[#terms + 1] = {key = key, of = of} end
    if level == 0 then
      add("q", function(c) return c.q end)
      add("entropy", by_log)
      add("acceptance", function(c) return k.min(c.p, c.q) end)
    end
    P.each_term(level, function(name, of) add(name, function(c) return of(c.at) end) end)
    P.each_slope(level, function(j, of) add("slope" .. j, function(c) return of(c.at) end) end)
    return terms
  end

  -- Adds the sums of a level to place and to found, and finds the best columns beside those of the first, found.best.
  local function add_level(p, rows, units, lse, place, level, found)
    local terms, none = terms_of(level), {}
    for i = 1, #terms do none[i] = zero end
    if level == 0 then none.x, none.y = NO_BEST, NO_BEST end
    local shares = sweep(p, rows, none, function(state, at)
      local sums = {}
      if level == 0 then
        for _, row in ipairs {"x", "y"} do sums[row] = add_best(state[row], at, at[row], units[row]) end
      end
      for c = 1, #at.x do
        local column = of_column(place, level, lse, at.x[c], at.y[c])
        for i, term in ipairs(terms) do
          local value = term.of(column)
          if at.inside then value = k.select(at.inside[c], value, 0.0) end
          sums[i] = sums[i] and sums[i] + value or value
        end
      end
      for i = 1, #terms do sums[i] = state[i] + sums[i] end
      return sums
    end)
    if level == 0 then found.best = fold({x = shares.x, y = shares.y}, {"top", "column"}, better) end
    for i, total in ipairs(totals(table.move(shares, 1, #terms, 1, {}))) do found[terms[i].key] = total end
    P.set_sums(place, level, found)
  end

  ------------------------------------------------------------------------------------------------ one row
  local function give_values(p, row, lse, place, found)
    local alive = k.eq(lse.x.value, lse.x.value) & k.eq(lse.y.value, lse.y.value)
    local same = k.eq(found.best_x, found.best_y) & alive
    local values = {k.select(alive, place.value[spec.loss.result], nan), lse.x.value, lse.y.value,
                    k.select(k.gt(found.entropy, 0.0), k.const(k.f64, 0.0), -found.entropy),
                    k.select(alive, found.acceptance, nan),
                    k.select(same, one, 0.0)}
    for i, value in ipairs(values) do k.store(p.values, row * 6 + (i - 1), k.convert(k.f32, value)) end
  end

  local function store(out, at, values)
    if not at.vectors then return k.store(out, at.column[1], rounded(values[1])) end
    for i, vector in ipairs(at.vectors) do
      local own = table.move(values, (i - 1) * VECTOR + 1, i * VECTOR, 1, {})
      local function all() store_vector(out, vector.first, own) end
      if vector.inside then k.when(vector.inside, all) else all() end
    end
  end

  -- The upstream gradients of a row that are given, f32.
  local function pulls_of(p, row)
    local function of(ptr, default)
      return k.branch(k.is_null(ptr), function() return k.const(k.f32, default) end,
        function() return k.load(k.f32, ptr, row) end)
    end
    local target = k.branch(k.is_null(p.target), function() return k.const(k.i64, -1) end,
      function() return k.load(k.i64, p.target, row) end)
    local has_target = k.ge(target, 0) & k.lt(target, k.convert(k.i64, p.vocab))
    return {value = of(p.upstream, 1.0), entropy = of(p.grad_entropy, 0.0),
            logprob = k.select(has_target, of(p.grad_logprob, 0.0), 0.0), target = k.convert(k.i32, target)}
  end

  local function give_gradient(p, rows, lse, place, found, pulls, scale, out)
    local by_sum = P.resolve(place, found)
    local pull = k.const(k.f64, 0.0)
    P.each_slope(nil, function(j) pull = pull + by_sum[j] * found["slope" .. j] end)
    local each = k.convert(k.f32, pull / found.q)
    local value, of_target, of_entropy = pulls.value * scale, pulls.logprob * scale, pulls.entropy * scale
    local entropy, counts = k.convert(k.f32, -found.entropy), k.ne(value, 0.0)
    local function gradients(is_alone)
      sweep(p, rows, nil, function(_, at)
        local values = {}
        for c = 1, #at.x do
          local column = of_column(place, P.levels, lse, at.x[c], at.y[c])
          values[c] = k.fma(-column.q, each, P.slope(column.at, by_sum)) * value
          if not is_alone then
            local by_entropy = k.select(k.eq(column.q, 0.0), 0.0, of_entropy * (column.log_q + entropy))
            local own = k.select(k.eq(at.column[c], pulls.target), of_target, 0.0)
            values[c] = k.select(counts, values[c], 0.0) + k.fma(-column.q, of_target + by_entropy, own)
          end
        end
        store(out, at, values)
      end)
    end
    k.branch(k.eq(of_target, 0.0) & k.eq(of_entropy, 0.0), function() gradients(true) end,
      function() gradients(false) end)
  end

  local function clear(p, out)
    k.loop(k.tid(), p.vocab, PACE.threads, nil, function(column)
      k.store(out, column, rounded(zero))
    end)
  end

  -- Sums of all levels in the order in which state has them, behind the two log-sum-exps.
  local SUMS = {}
  for level = 0, P.levels - 1 do
    for _, term in ipairs(terms_of(level)) do SUMS[#SUMS + 1] = term.key end
  end
  assert(#SUMS + 4 <= k.abi.DIVERGE_WORDS)

  -- Where state has word i of {lse of x, of y, sums, best columns of x, of y}: these two stand last.
  local function place_of(i) return i <= #SUMS + 2 and i - 1 or k.abi.DIVERGE_WORDS - (#SUMS + 4) + i - 1 end

  local function place_with(p, found)
    local place, leaves = P.place(), leaves_of(p)
    for level = 0, P.levels do
      P.of_row(place, level, leaves)
      if level < P.levels then P.set_sums(place, level, found) end
    end
    return place
  end

  local function read_state(p, row)
    local words = {}
    for i = 1, #SUMS + 4 do words[i] = k.load(k.f64, p.state, row * k.abi.DIVERGE_WORDS + place_of(i)) end
    return words
  end

  -- What forward passes have summed of a row of each, {x, y} of {m, s}.
  local function ends_given(p, row)
    local function of(partial)
      local words = k.load_vector(k.f32, 4, partial, row)
      return {m = words[1], s = words[2]}
    end
    return {x = of(p.partial), y = of(p.teacher_partial)}
  end

  local function make_state(p, row, rows, units)
    local ends = k.branch(k.is_null(p.partial), function() return ends_of(p, rows, units) end,
      function() return ends_given(p, row) end)
    local alive = ~(is_dead(ends.x) | is_dead(ends.y))
    local words = {lse_of(ends.x, alive), lse_of(ends.y, alive)}
    local lse = {x = split(words[1], units.x), y = split(words[2], units.y)}
    k.when(k.eq(k.tid(), 0) & ~k.is_null(p.values) & (S.is_beyond(ends.x) | S.is_beyond(ends.y)), function()
      k.atomic_add(p.error_word, 0, k.const(k.i32, 1))
    end)
    local place, found, leaves = P.place(), {}, leaves_of(p)
    for level = 0, P.levels - 1 do
      P.of_row(place, level, leaves)
      add_level(p, rows, units, lse, place, level, found)
    end
    for i, key in ipairs(SUMS) do words[i + 2] = found[key] end
    for i, row in ipairs {"x", "y"} do words[#SUMS + 2 + i] = f64(found.best[row].column) end
    k.when(k.eq(k.tid(), 0) & ~k.is_null(p.state), function()
      for i, word in ipairs(words) do k.store(p.state, row * k.abi.DIVERGE_WORDS + place_of(i), word) end
    end)
    return words
  end

  local function body(p)
    local row = k.convert(k.i64, k.ctaid())
    local function of(ptr, stride) return k.offset(ptr, row * stride * 4) end
    local rows = {x = of(p.scores, p.scores_stride), y = of(p.teacher, p.teacher_stride)}
    local units = {x = unit_of(p.scale, p.scale_rows, row), y = unit_of(p.teacher_scale, p.teacher_scale_rows, row)}
    local words = k.branch(k.ne(p.resumes, 0), function() return read_state(p, row) end,
      function() return make_state(p, row, rows, units) end)
    local found = {best_x = words[#SUMS + 3], best_y = words[#SUMS + 4]}
    for i, key in ipairs(SUMS) do found[key] = words[i + 2] end
    local lse = {x = split(words[1], units.x), y = split(words[2], units.y)}
    k.when(k.eq(k.tid(), 0) & ~k.is_null(p.values), function()
      give_values(p, row, lse, place_with(p, found), found)
    end)
    k.when(~k.is_null(p.grad_scores), function()
      local pulls = pulls_of(p, row)
      local out = k.offset(p.grad_scores, row * p.grad_scores_stride * element_bytes)
      k.branch(k.eq(pulls.value, 0.0) & k.eq(pulls.logprob, 0.0) & k.eq(pulls.entropy, 0.0),
        function() clear(p, out) end,
        function() give_gradient(p, rows, lse, place_with(p, found), found, pulls, units.x.scale, out) end)
    end)
  end

  local most = 4                                     -- of fold
  for level = 0, P.levels - 1 do most = math.max(most, #terms_of(level)) end
  k.kernel {entry = "diverge", threads = PACE.threads, min_ctas = 4, shared_bytes = WARPS * most * 4, body = body}
end
