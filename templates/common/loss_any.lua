-- loss_any.lua: any loss program as data, one operation after the other, for where nothing can compile it: the formulas
-- of loss.lua, so the same results as its kernel's. The data is flp_loss_code of runtime/loss/loss.h.
--
-- Every operation is computed at every node and one is chosen: a program has some tens of nodes, a row passes once. The
-- value and all derivatives of each node stand in shared memory, 24 or 40 bytes, so a CTA has as many rows at a time as
-- 48 KiB hold of the longest program.

-- about: spec.loss; about.code: byte offsets inside the data and of a node, and how long it may be.
return function(k, about)
  local code, operations = about.code, about.operations
  local ROWS = about.of_scores and 4 or 8
  local TURNS = 32 // ROWS
  local FIELDS = about.of_scores and 4 or 2         -- by logprob, by entropy; by lse, by mean_score
  local A = {threads = ROWS * TURNS, shared_bytes = code.nodes_max * ROWS * (1 + FIELDS) * 8, reads_all = true}
  local L = k.import "loss" (k)
  local f64 = function(x) return k.const(k.f64, x) end
  local zero, one = f64(0.0), f64(1.0)

  local function slot(node, field)
    return k.shared() + ((node * (1 + FIELDS) + field) * ROWS + k.tid()) * 8
  end

  local function choose(list, at, fallback)
    local chosen = fallback
    for i, value in ipairs(list) do chosen = k.select(k.eq(at, i - 1), value, chosen) end
    return chosen
  end

  -- What an operation takes as conditions is not 0, what it gives as one is 1 or 0.
  local function run(f, operation, y, operands)
    local taken = {}
    for j = 1, operation.arity do
      taken[j] = operation.conditions[j] and k.ne(operands[j], 0.0) or operands[j]
    end
    local results = y and {f(y, table.unpack(taken))} or {f(table.unpack(taken))}
    for j, result in ipairs(results) do
      if tostring(result.type) == "i1" then results[j] = k.select(result, one, zero) end
    end
    return results
  end

  -- y and ∂y/∂a, ∂y/∂b, ∂y/∂c; is_mask: what a part of 0 leaves out is 0
  local function apply(op, leaf, operands)
    local y, parts, is_mask = leaf, {zero, zero, zero}, k.const(k.i1, false)
    for i, operation in ipairs(operations) do
      local value, partial, chosen = L.values[operation.name], L.partials[operation.name], k.eq(op, i - 1)
      if value then
        local own = run(value, operation, nil, operands)[1]
        for j, part in ipairs(partial and run(partial, operation, own, operands) or {}) do
          parts[j] = k.select(chosen, part, parts[j])
        end
        y = k.select(chosen, own, y)
      end
      if L.is_mask[operation.name] then is_mask = is_mask | chosen end
    end
    return y, parts, is_mask
  end

  -- Bits of flp_loss_code's active: of the node, and of its first operand.
  local own_bit, operand_bit = {0, 1, 11, 12}, {2, 5, 13, 16}

  local function tangent(field, active, at, is_input, parts, is_mask)
    local sum = zero
    for j, part in ipairs(parts) do
      local term = part * k.shared_load(k.f64, slot(at[j], field))
      term = k.select(is_mask & k.eq(part, 0.0), zero, term)
      sum = sum + k.select(k.ne(active & (1 << (operand_bit[field] + j - 1)), 0), term, zero)
    end
    return k.select(k.ne(active & (1 << own_bit[field]), 0), k.select(is_input, one, sum), zero)
  end

  local function node(program, i, inputs, parameters)
    local function word(offset)
      return k.load(k.i32, program, code.head_bytes // 4 + i * (code.node_bytes // 4) + offset // 4)
    end
    local op, active, at, operands = word(code.op), word(code.active), {}, {}
    for j = 1, 3 do
      at[j] = word(code.operands + 4 * (j - 1))
      operands[j] = k.shared_load(k.f64, slot(at[j], 0))
    end
    local value = k.load(k.f64, program, code.head_bytes // 8 + i * (code.node_bytes // 8) + code.value // 8)
    local leaves = {value, choose(inputs, at[1], zero), choose(parameters, at[1], zero)}
    local y, parts, is_mask = apply(op, choose(leaves, op, zero), operands)
    local is_input = k.eq(op, 1)
    for field = 1, FIELDS do
      k.shared_store(slot(i, field), tangent(field, active, at, is_input, parts, is_mask))
    end
    k.shared_store(slot(i, 0), y)
  end

  -- f of the number of each metric, 0 on.
  function A.each_metric(program, f)
    k.loop(0, k.load(k.i32, program, code.metric_count // 4), 1, nil, function(i) f(k.convert(k.i64, i)) end)
  end

  -- inputs, parameters: as of loss.lua; all of them are read, whatever the program reads. Returns {loss, by_logprob,
  -- by_entropy, by_lse, by_mean, metric = function of its number}, f64 values; the third and fourth with of_scores.
  function A.emit(program, input, parameter)
    local inputs, parameters = {}, {}
    for i = 1, #about.inputs do inputs[i] = input(i) end
    for i = 1, code.parameters_max do parameters[i] = parameter(i) end
    local nodes = k.load(k.i32, program, code.node_count // 4)
    k.loop(0, nodes, 1, nil, function(i) node(program, i, inputs, parameters) end)
    local function of_node(word, field) return k.shared_load(k.f64, slot(k.load(k.i32, program, word), field)) end
    local function result(field) return of_node(code.result // 4, field) end
    local by_lse, by_mean
    if about.of_scores then by_lse, by_mean = result(3), result(4) end
    return {loss = result(0), by_logprob = result(1), by_entropy = result(2), by_lse = by_lse, by_mean = by_mean,
            metric = function(i) return of_node(k.convert(k.i32, i) + code.metrics // 4, 0) end}
  end

  -- f of each row of the CTA that falls to this thread, 0 on.
  function A.each_row(f)
    k.when(k.lt(k.tid(), ROWS), function()
      k.loop(0, TURNS, 1, nil, function(turn) f(turn * ROWS + k.tid()) end)
    end)
  end

  return A
end
