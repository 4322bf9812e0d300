-- loss_rows.lua: a loss program over arrays of rows, all or those that are listed, one thread a row; or what rows without
-- work get in its place: see runtime/abi.h.

local INPUTS = {"logprob", "entropy", "old_logprob", "ref_logprob", "advantage", "weight",
                "vector0", "vector1", "vector2", "vector3", "vector4", "vector5", "vector6", "vector7"}
local THREADS = 256
local ACTIVE, BAD = 0, 2                            -- of row_class

return function(k, spec)
  local L = k.import "loss" (k)

  local function load(p, row, name)
    return k.convert(k.f64, k.load(k.f32, p[name], row, {const = true}))
  end

  local function input(p, row, name)
    local function missing()
      return name == "weight" and k.const(k.f64, 1.0) or load(p, row, "logprob")
    end
    if name ~= "weight" and name ~= "old_logprob" then return load(p, row, name) end
    return k.branch(k.is_null(p[name]), missing, function() return load(p, row, name) end)
  end

  local function store(ptr, at, value)
    k.when(~k.is_null(ptr), function() k.store(ptr, at, k.convert(k.f32, value)) end)
  end

  local function compute(p, row)
    local out = L.emit(spec.loss, function(i) return input(p, row, INPUTS[i]) end,
      function(i) return p["parameter" .. i - 1] end)
    store(p.loss, row, out.loss)
    store(p.grad_logprob, row, out.by_logprob)
    store(p.grad_entropy, row, out.by_entropy)
    for i, metric in ipairs(out.metrics) do store(p.metrics, p.n * (i - 1) + row, metric) end
  end

  local function fill(p, row)
    local class = k.convert(k.i32, k.load(k.i8, p.row_class, row))
    local value = k.select(k.eq(class, BAD), k.const(k.f64, 0.0 / 0.0), 0.0)
    k.when(k.ne(class, ACTIVE), function()
      store(p.loss, row, value)
      for i = 1, #spec.loss.metrics do store(p.metrics, p.n * (i - 1) + row, value) end
    end)
  end

  local function body(p)
    local thread = k.ctaid() * THREADS + k.tid()
    local listed = ~k.is_null(p.index)
    local last = k.branch(listed, function() return k.convert(k.i64, k.min(k.load(k.i32, p.count, 0), p.row_end)) end,
      function() return p.n end)
    local at = k.convert(k.i64, k.select(listed, p.row_begin, 0)) + k.convert(k.i64, thread)
    k.exit_if(k.ge(at, last))
    local row = k.branch(listed, function() return k.convert(k.i64, k.load(k.i32, p.index, at)) end,
      function() return at end)
    k.branch(k.is_null(p.row_class), function() compute(p, row) end, function() fill(p, row) end)
  end

  k.kernel {entry = "loss_rows", threads = THREADS, body = body}
end
