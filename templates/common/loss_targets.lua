-- loss_targets.lua: a loss program over the targets of a row (runtime/loss/loss.h), one warp a row: lane l takes targets
-- l, l + 32, ...; or what inactive rows get in its place: see runtime/kernel/abi.h.
--
--   for each level l: values of the row of level l; each lane's share of the sums of level l; sums over the lanes
--   loss, metrics; by_sum_j = ∂loss/∂S_j + Σ_{i>j} by_sum_i·∂S_i/∂S_j, from the last sum back
--   for each target: grad_logprob = Σ_j by_sum_j·∂(operand of S_j)/∂logprob
--
-- Everything is f64, as in the reference (runtime/loss/targets.c), but for the order of sums.

local THREADS = 256
local WARPS = THREADS // 32
local OWN, ENTROPY, BY_SUM = 0, 1, 2                  -- directions: bits of node.active

return function(k, spec)
  local L, program = k.import "loss" (k), spec.loss
  local nodes, sums = program.nodes, program.sums
  local id_type = spec.target_dtype == "int64" and k.i64 or k.i32
  local zero, one = k.const(k.f64, 0.0), k.const(k.f64, 1.0)
  local i64 = function(v) return k.convert(k.i64, v) end

  local function depends(i, direction) return nodes[i].active >> direction & 1 == 1 end
  local function load(ptr, at) return k.convert(k.f64, k.load(k.f32, ptr, at, {const = true})) end
  local function store(ptr, at, value)
    k.when(~k.is_null(ptr), function() k.store(ptr, at, k.convert(k.f32, value)) end)
  end

  ----------------------------------------------------------------------------------------------- values, derivatives
  -- What nodes are at one place: value[i], tangent[i][direction].
  local function copy(place)
    local value, tangent = {}, {}
    for i = 1, #nodes do value[i], tangent[i] = place.value[i], place.tangent[i] end
    return {value = value, tangent = tangent}
  end

  local function tangent_of(node, parts, place, direction)
    local sum
    for j, at in ipairs(node) do
      if depends(at, direction) then
        local term = parts[j] * place.tangent[at][direction]
        if L.is_mask[node.op] then term = k.select(k.eq(parts[j], 0.0), zero, term) end
        sum = sum and sum + term or term
      end
    end
    return sum
  end

  local function compute(place, i, leaves)
    local node, operands = nodes[i], {}
    for j, at in ipairs(node) do operands[j] = place.value[at] end
    local value = leaves[node.op] and leaves[node.op](node) or L.values[node.op](table.unpack(operands))
    place.value[i], place.tangent[i] = value, {}
    if node.active == 0 then return end
    local parts = node.op ~= "input" and {L.partials[node.op](value, table.unpack(operands))}
    for direction = OWN, BY_SUM + #sums - 1 do
      if depends(i, direction) then
        place.tangent[i][direction] = parts and tangent_of(node, parts, place, direction) or one
      end
    end
  end

  -- Values of a row, or of each target, that need no sums of this level or above.
  local function compute_all(place, of_targets, level, leaves)
    for i, node in ipairs(nodes) do
      if node.op ~= "sum" and node.of_targets == of_targets and node.level <= level then compute(place, i, leaves) end
    end
    return place
  end

  ----------------------------------------------------------------------------------------------- sums over targets
  local function shuffle(v, mask)
    local bits = k.bitcast(k.i64, v)
    local low, high = k.shuffle_xor(k.convert(k.i32, bits), mask), k.shuffle_xor(k.convert(k.i32, k.lshr(bits, 32)), mask)
    return k.bitcast(k.f64, k.zext(k.i64, low) | (i64(high) << 32))
  end

  local function over_lanes(v)
    for _, mask in ipairs {16, 8, 4, 2, 1} do v = v + shuffle(v, mask) end
    return v
  end

  -- What is added up for sum j: its operand, and the operand's derivatives by the entropy and by sums before it.
  local function terms_of(j, each)
    local operand = nodes[sums[j]][1]
    each("value" .. j, function(place) return place.value[operand] end)
    for direction = ENTROPY, BY_SUM + j - 2 do
      if depends(operand, direction) then
        each("by" .. direction .. "_" .. j, function(place) return place.tangent[operand][direction] end)
      end
    end
  end

  local function each_term(level, f)
    for j, at in ipairs(sums) do
      if nodes[at].level == level then terms_of(j, f) end
    end
  end

  local function weight_of(p, row)
    return k.branch(k.is_null(p.weight), function() return one end, function() return load(p.weight, row) end)
  end

  local function leaves_of(p, row, at)
    local names = program.inputs
    return {
      constant = function(node) return k.const(k.f64, node.value) end,
      parameter = function(node) return p["parameter" .. node.index - 1] end,
      input = function(node)
        local name = names[node.index]
        if node.of_targets then return load(p[name], at) end
        return name == "weight" and weight_of(p, row) or load(p[name], row)
      end,
    }
  end

  -- f(at, counts) of each of the lane's targets; state: what f returns anew
  local function each_target(p, row, state, f)
    return k.loop(k.lane(), p.targets, 32, state, function(i, state)
      local at = row * i64(p.targets) + i64(i)
      return f(at, k.ne(i64(k.load(id_type, p.target, at)), p.ignore_index), state)
    end)
  end

  -- Adds the sums of a level to place; found: what terms_of names, of all levels so far.
  local function add_level(p, row, place, level, found)
    local none = {}
    each_term(level, function(name) none[name] = zero end)
    local shares = each_target(p, row, none, function(at, counts, state)
      local own, more = compute_all(copy(place), true, level, leaves_of(p, row, at)), {}
      each_term(level, function(name, of) more[name] = state[name] + k.select(counts, of(own), zero) end)
      return more
    end)
    each_term(level, function(name) found[name] = over_lanes(shares[name]) end)
    for j, at in ipairs(sums) do
      if nodes[at].level == level then
        place.value[at], place.tangent[at] = found["value" .. j], {[BY_SUM + j - 1] = one}
      end
    end
  end

  -- ∂loss/∂sum of each sum, and ∂loss/∂entropy.
  local function resolve(place, found)
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

  ----------------------------------------------------------------------------------------------- rows
  local function store_gradients(p, row, place, by_sum, weighs)
    each_target(p, row, nil, function(at, counts)
      local own, total = compute_all(copy(place), true, program.levels, leaves_of(p, row, at)), zero
      for j, sum in ipairs(sums) do
        local operand = nodes[sum][1]
        if depends(operand, OWN) then total = total + by_sum[j] * own.tangent[operand][OWN] end
      end
      store(p.grad_logprob, at, k.select(counts & weighs, total, zero))
    end)
  end

  -- A row of weight 0 has zeros, whatever else it holds.
  local function compute_row(p, row)
    local place, found = {value = {}, tangent = {}}, {}
    local leaves = leaves_of(p, row)
    for level = 0, program.levels - 1 do
      compute_all(place, false, level, leaves)
      add_level(p, row, place, level, found)
    end
    compute_all(place, false, program.levels, leaves)
    local by_sum, by_entropy = resolve(place, found)
    local weighs = k.ne(weight_of(p, row), 0.0)
    local function give(ptr, at, value) store(ptr, at, k.select(weighs, value, zero)) end
    k.when(k.eq(k.lane(), 0), function()
      give(p.loss, row, place.value[program.result])
      give(p.grad_entropy, row, by_entropy)
      for i, at in ipairs(program.metrics) do give(p.metrics, p.n * (i - 1) + row, place.value[at]) end
    end)
    k.when(~k.is_null(p.grad_logprob), function() store_gradients(p, row, place, by_sum, weighs) end)
  end

  local function fill(p, row)
    local class = k.convert(k.i32, k.load(k.i8, p.row_class, row))
    local value = k.select(k.eq(class, k.abi.ROW_BAD), k.const(k.f64, 0.0 / 0.0), 0.0)
    k.when(k.ne(class, k.abi.ROW_ACTIVE) & k.eq(k.lane(), 0), function()
      store(p.loss, row, value)
      for i = 1, #program.metrics do store(p.metrics, p.n * (i - 1) + row, value) end
    end)
  end

  local function body(p)
    local listed = ~k.is_null(p.index)
    local last = k.branch(listed, function() return i64(k.min(k.load(k.i32, p.count, 0), p.row_end)) end,
      function() return p.n end)
    local at = i64(k.select(listed, p.row_begin, 0)) + i64(k.ctaid()) * WARPS + i64(k.warp())
    k.exit_if(k.ge(at, last))
    local row = k.branch(listed, function() return i64(k.load(k.i32, p.index, at)) end, function() return at end)
    k.branch(k.is_null(p.row_class), function() compute_row(p, row) end, function() fill(p, row) end)
  end

  k.kernel {entry = "loss_targets", threads = THREADS, body = body}
end
