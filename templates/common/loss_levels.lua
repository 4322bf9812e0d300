-- loss_levels.lua: a program over targets (runtime/loss/loss.h) as code of one row: values and derivatives by level.
--
--   for each level l: values of the row of level l, then sums of level l over the targets
--   by_sum_j = ∂loss/∂S_j + Σ_{i>j} by_sum_i·∂S_i/∂S_j, from the last sum back
--   of a target: Σ_j by_sum_j·∂(operand of S_j)/∂logprob
--
-- program: spec.loss. own: loss.lua's arithmetic for values of a target; values of the row, and sums, are f64.
-- A place holds what nodes are at one place, of the row or of one target: value[i], tangent[i][direction].

local OWN, ENTROPY, BY_SUM = 0, 1, 2                  -- directions: bits of node.active

return function(k, program, own)
  local L = k.import "loss" (k)
  local nodes, sums = program.nodes, program.sums
  local zero, one = k.const(k.f64, 0.0), k.const(k.f64, 1.0)
  local P = {levels = program.levels}

  local function depends(i, direction) return nodes[i].active >> direction & 1 == 1 end

  local function copy(place)
    local value, tangent = {}, {}
    for i = 1, #nodes do value[i], tangent[i] = place.value[i], place.tangent[i] end
    return {value = value, tangent = tangent}
  end

  function P.place() return {value = {}, tangent = {}} end

  -- A value of the row where one of a target is made.
  local function as_own(v) return v.type == k.f64 and own.number ~= k.f64 and k.convert(own.number, v) or v end
  local function as_row(v) return v end

  local function tangent_of(A, node, parts, place, direction, as)
    local sum
    for j, at in ipairs(node) do
      if depends(at, direction) then sum = A.add(sum, node.op, parts[j], as(place.tangent[at][direction])) end
    end
    return sum
  end

  local function compute(place, i, leaves)
    local node, operands = nodes[i], {}
    local A, as = node.of_targets and own or L, node.of_targets and as_own or as_row
    for j, at in ipairs(node) do operands[j] = as(place.value[at]) end
    local value = leaves[node.op] and leaves[node.op](node) or A.values[node.op](table.unpack(operands))
    place.value[i], place.tangent[i] = value, {}
    if node.active == 0 then return end
    local parts = node.op ~= "input" and {A.partials[node.op](value, table.unpack(operands))}
    for direction = OWN, BY_SUM + #sums - 1 do
      if depends(i, direction) then
        place.tangent[i][direction] = parts and tangent_of(A, node, parts, place, direction, as) or as(one)
      end
    end
  end

  local function compute_all(place, of_targets, level, leaves)
    for i, node in ipairs(nodes) do
      if node.op ~= "sum" and node.of_targets == of_targets and node.level <= level then compute(place, i, leaves) end
    end
    return place
  end

  -- Values of the row that need no sums of this level or above.
  function P.of_row(place, level, leaves) return compute_all(place, false, level, leaves) end

  -- A place of one target, likewise.
  function P.of_target(place, level, leaves) return compute_all(copy(place), true, level, leaves) end

  -- f(name, of) of all that is added up over targets for sums of a level, of: place of a target -> what it adds: the
  -- sum's operand, and its derivatives by the entropy and by sums before it.
  function P.each_term(level, f)
    for j, at in ipairs(sums) do
      local operand = nodes[at][1]
      if nodes[at].level == level then
        f("value" .. j, function(place) return place.value[operand] end)
        for direction = ENTROPY, BY_SUM + j - 2 do
          if depends(operand, direction) then
            f("by" .. direction .. "_" .. j, function(place) return place.tangent[operand][direction] end)
          end
        end
      end
    end
  end

  -- f(j, of) of sums of a level, nil: of any, whose operand depends on the target's logprob; of: place of a target ->
  -- that derivative.
  function P.each_slope(level, f)
    for j, at in ipairs(sums) do
      local operand = nodes[at][1]
      if (not level or nodes[at].level == level) and depends(operand, OWN) then
        f(j, function(place) return place.tangent[operand][OWN] end)
      end
    end
  end

  -- Gives place the sums of a level. found: what each_term names -> f64 totals
  function P.set_sums(place, level, found)
    for j, at in ipairs(sums) do
      if nodes[at].level == level then
        place.value[at], place.tangent[at] = found["value" .. j], {[BY_SUM + j - 1] = one}
      end
    end
  end

  -- ∂loss/∂sum of each sum, and ∂loss/∂entropy. found: totals of all levels
  function P.resolve(place, found)
    local result = program.result
    local function of_loss(direction) return depends(result, direction) and place.tangent[result][direction] or zero end
    local by_sum, by_entropy = {}, of_loss(ENTROPY)
    for j = 1, #sums do by_sum[j] = of_loss(BY_SUM + j - 1) end
    for j = #sums, 1, -1 do
      for i = 1, j - 1 do
        local part = found["by" .. BY_SUM + i - 1 .. "_" .. j]
        if part then by_sum[i] = by_sum[i] + by_sum[j] * part end
      end
      local part = found["by" .. ENTROPY .. "_" .. j]
      if part then by_entropy = by_entropy + by_sum[j] * part end
    end
    return by_sum, by_entropy
  end

  -- ∂loss/∂logprob of a target, by its place with values of all levels.
  function P.slope(target, by_sum)
    local total = as_own(zero)
    P.each_slope(nil, function(j, of) total = total + as_own(by_sum[j]) * of(target) end)
    return total
  end

  return P
end
