-- loss.lua: a loss program (runtime/loss/loss.h) as kernel code: its value, its derivatives by dual numbers, its metrics.
--
-- Everything is f64, as in the reference (runtime/loss/eval.c), whose conventions at kinks these are: a program costs
-- some hundred operations a row, once. With single it is f32, for what is made once a score: exp and log are off by
-- some 2^-22 of their value, and exp is 0 below 2^-100, so that parts of it are no subnormals.

return function(k, single)
  local number = single and k.f32 or k.f64
  local L = {number = number}
  local F = k.import "math64" (k)
  local infinity, nan = 1.0 / 0.0, 0.0 / 0.0
  local const = function(x) return k.const(number, x) end
  local f64 = function(x) return k.const(k.f64, x) end
  local zero, one, half = const(0.0), const(1.0), const(0.5)

  local function lesser(a, b) return k.select(k.lt(a, b) | k.is_nan(a), a, b) end
  local function greater(a, b) return k.select(k.gt(a, b) | k.is_nan(a), a, b) end

  -- math64 is for normal arguments; beyond 708 the result overflows any f32
  local function exp(x) return k.select(k.gt(x, 708.0), f64(infinity), F.exp(x)) end
  local function expm1(x) return k.select(k.gt(x, 708.0), f64(infinity), F.expm1(x)) end
  local function log(x)
    local is_tiny = k.lt(x, 0x1p-1022)
    local y = (F.log2(k.select(is_tiny, x * 0x1p54, x)) - k.select(is_tiny, f64(54.0), zero)) * 0.6931471805599453
    y = k.select(k.eq(x, 0.0), f64(-infinity), k.select(k.eq(x, infinity), x, y))
    return k.select(k.ge(x, 0.0), y, f64(nan))
  end
  if single then
    local wide = expm1
    function L.exp2(x) return k.select(k.lt(x, -100.0), zero, k.exp2(x)) end
    exp = function(x) return L.exp2(x * 1.4426950408889634) end
    log = function(x) -- x = 2^e·m with m in [√½, √2): e·log 2 + 2·atanh((m - 1)/(m + 1)), also near 1
      local bits = k.bitcast(k.i32, x)
      local e = (bits - 0x3f3504f3) >> 23
      local m = k.bitcast(k.f32, bits - (e << 23))
      local s = (m - 1.0) * k.rcp_approx(m + 1.0)
      local w = s * s
      local series = k.fma(k.fma(k.fma(w, 2 / 7, const(2 / 5)), w, const(2 / 3)), w, const(2.0))
      local y = k.fma(k.convert(k.f32, e), 0.6931471805599453, s * series)
      return k.select(k.gt(x, 0.0) & k.lt(x, infinity), y, k.log2(x)) -- else -inf, inf or NaN
    end
    expm1 = function(x) return k.convert(k.f32, wide(k.convert(k.f64, x))) end
  end

  L.values = {
    neg = function(a) return -a end, abs = k.abs, exp = exp, expm1 = expm1, log = log, sqrt = k.sqrt,
    detach = function(a) return a end,
    add = function(a, b) return a + b end, sub = function(a, b) return a - b end,
    mul = function(a, b) return a * b end, div = function(a, b) return a / b end,
    min = lesser, max = greater, clamp = function(x, low, high) return lesser(greater(x, low), high) end,
    lt = k.lt, le = k.le, eq = k.eq, where = k.select,
    ["and"] = function(a, b) return a & b end, ["or"] = function(a, b) return a | b end,
    ["not"] = function(a) return ~a end,
  }

  -- The share of a in min or max: none if it loses, half of a tie.
  local function share(loses, a, b) return k.select(loses, zero, k.select(k.eq(a, b), half, one)) end
  local function mask(condition) return k.select(condition, one, zero) end

  -- ∂y/∂a, ∂y/∂b, ∂y/∂c of y = op(a, b, c); what nothing reads LLVM drops.
  L.partials = {
    neg = function() return const(-1.0) end,
    abs = function(y, a) return mask(k.gt(a, 0.0)) - mask(k.lt(a, 0.0)) end,
    exp = function(y) return y end, expm1 = function(y) return y + 1.0 end,
    log = function(y, a) return single and k.rcp_approx(a) or 1.0 / a end, sqrt = function(y) return 0.5 / y end,
    add = function() return one, one end, sub = function() return one, const(-1.0) end,
    mul = function(y, a, b) return b, a end, div = function(y, a, b) return 1.0 / b, -y / b end,
    min = function(y, a, b) return share(k.gt(a, b), a, b), share(k.gt(b, a), a, b) end,
    max = function(y, a, b) return share(k.lt(a, b), a, b), share(k.lt(b, a), a, b) end,
    clamp = function(y, x, low, high)
      return mask(k.ge(x, low) & k.le(x, high)), mask(k.lt(low, high) & k.lt(x, low)),
        mask(k.gt(x, high) | k.lt(high, low))
    end,
    where = function(y, condition)
      if single then return zero, condition, ~condition end
      return zero, mask(condition), mask(~condition)
    end,
  }
  L.is_mask = {min = true, max = true, clamp = true, where = true} -- what they leave out is 0, even of 0·inf

  -- sum, or nil, and what a derivative by an operand adds to it. part: that derivative, or of where a condition
  function L.add(sum, op, part, tangent)
    if single and sum and not L.is_mask[op] then return k.fma(part, tangent, sum) end
    local is_condition = part.type == k.i1
    local term = is_condition and tangent or part * tangent
    if L.is_mask[op] then
      term = k.select(is_condition and ~part or k.eq(part, 0.0), k.const(term.type, 0.0), term)
    end
    return sum and sum + term or term
  end

  local function tangent(node, field, y, operands, nodes, tangents)
    local parts, sum = {L.partials[node.op](y, table.unpack(operands))}, nil
    for j, i in ipairs(node) do
      if nodes[i][field] then sum = L.add(sum, node.op, parts[j], tangents[i]) end
    end
    return sum
  end

  -- program: spec.loss. inputs, parameters: functions from an index, 1 on, to an f64 value. Returns {loss, by_logprob,
  -- by_entropy, metrics = {...}}, f64 values; the derivatives are constants 0 where the loss has none. Of a program that
  -- reads values of all scores: by_lse and by_mean, too.
  function L.emit(program, inputs, parameters)
    local nodes, value, tangents = program.nodes, {}, {by_logprob = {}, by_entropy = {}}
    if program.of_scores then tangents.by_lse, tangents.by_mean = {}, {} end
    for i, node in ipairs(nodes) do
      local operands = {}
      for j, at in ipairs(node) do operands[j] = value[at] end
      local leaf = {constant = function() return const(node.value) end,
                    input = function() return inputs(node.index) end,
                    parameter = function() return parameters(node.index) end}
      value[i] = (leaf[node.op] or L.values[node.op])(table.unpack(operands))
      for field, t in pairs(tangents) do
        if node[field] then
          t[i] = node.op == "input" and one or tangent(node, field, value[i], operands, nodes, t)
        end
      end
    end
    local metrics = {}
    for i, at in ipairs(program.metrics) do metrics[i] = value[at] end
    local result = program.result
    return {loss = value[result], by_logprob = tangents.by_logprob[result] or zero,
            by_entropy = tangents.by_entropy[result] or zero, metrics = metrics,
            by_lse = tangents.by_lse and (tangents.by_lse[result] or zero),
            by_mean = tangents.by_mean and (tangents.by_mean[result] or zero)}
  end

  return L
end
