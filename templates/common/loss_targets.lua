-- loss_targets.lua: a loss program over the targets of a row (runtime/loss/loss.h), one warp a row: lane l takes targets
-- l, l + 32, ...; or what inactive rows get in its place: see runtime/kernel/abi.h.
--
--   for each level l: values of the row of level l; each lane's share of the sums of level l; sums over the lanes
--   loss, metrics; for each target grad_logprob (loss_levels.lua)
--
-- Everything is f64, as in the reference (runtime/loss/targets.c), but for the order of sums.

local THREADS = 256
local WARPS = THREADS // 32

return function(k, spec)
  local program = spec.loss
  local P = k.import "loss_levels" (k, program, k.import "loss" (k))
  local id_type = spec.target_dtype == "int64" and k.i64 or k.i32
  local zero, one = k.const(k.f64, 0.0), k.const(k.f64, 1.0)
  local i64 = function(v) return k.convert(k.i64, v) end

  local function load(ptr, at) return k.convert(k.f64, k.load(k.f32, ptr, at, {const = true})) end
  local function store(ptr, at, value)
    k.when(~k.is_null(ptr), function() k.store(ptr, at, k.convert(k.f32, value)) end)
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

  -- Adds the sums of a level to place; found: what each_term names, of all levels so far.
  local function add_level(p, row, place, level, found)
    local none = {}
    P.each_term(level, function(name) none[name] = zero end)
    local shares = each_target(p, row, none, function(at, counts, state)
      local own, more = P.of_target(place, level, leaves_of(p, row, at)), {}
      P.each_term(level, function(name, of) more[name] = state[name] + k.select(counts, of(own), zero) end)
      return more
    end)
    P.each_term(level, function(name) found[name] = over_lanes(shares[name]) end)
    P.set_sums(place, level, found)
  end

  ----------------------------------------------------------------------------------------------- rows
  local function store_gradients(p, row, place, by_sum, weighs)
    each_target(p, row, nil, function(at, counts)
      local own = P.of_target(place, P.levels, leaves_of(p, row, at))
      store(p.grad_logprob, at, k.select(counts & weighs, P.slope(own, by_sum), zero))
    end)
  end

  -- A row of weight 0 has zeros, whatever else it holds.
  local function compute_row(p, row)
    local place, found = P.place(), {}
    local leaves = leaves_of(p, row)
    for level = 0, P.levels - 1 do
      P.of_row(place, level, leaves)
      add_level(p, row, place, level, found)
    end
    P.of_row(place, P.levels, leaves)
    local by_sum, by_entropy = P.resolve(place, found)
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
