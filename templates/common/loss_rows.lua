-- loss_rows.lua: a loss program over arrays of rows, all or those that are listed, one thread a row; or what inactive
-- rows get in its place: see runtime/kernel/abi.h. The program is compiled (loss.lua), or data (loss_any.lua). With
-- spec.loss.of_scores it is the entry loss_scores.

-- loss.lua in the form of loss_any.lua.
local function compiled(k, program)
  local L = k.import "loss" (k)
  local C = {threads = 256}
  function C.each_metric(_, f)
    for i = 0, #program.metrics - 1 do f(i) end
  end
  function C.emit(_, inputs, parameters)
    local out = L.emit(program, inputs, parameters)
    return {loss = out.loss, by_logprob = out.by_logprob, by_entropy = out.by_entropy, by_lse = out.by_lse,
            by_mean = out.by_mean,
            metric = function(i) return out.metrics[i + 1] end}
  end
  function C.each_row(f) f(k.tid()) end
  return C
end

return function(k, spec)
  local L = spec.loss.operations and k.import "loss_any" (k, spec.loss) or compiled(k, spec.loss)

  local of_scores = spec.loss.of_scores
  local of_targets = {target_logprob = true, teacher_logprob = true}

  local function load(p, row, name)
    return k.convert(k.f64, k.load(k.f32, p[name], row, {const = true}))
  end

  -- What a program does not read may be missing, of those that are data anything but logprob.
  local function input(p, row, name)
    if of_targets[name] then return k.const(k.f64, 0.0) end -- data has a place for them
    local stand_in = {old_logprob = function() return load(p, row, "logprob") end,
                      weight = function() return k.const(k.f64, 1.0) end}
    local missing = stand_in[name] or L.reads_all and function() return k.const(k.f64, 0.0) end
    if not missing then return load(p, row, name) end
    return k.branch(k.is_null(p[name]), missing, function() return load(p, row, name) end)
  end

  local function store(ptr, at, value)
    k.when(~k.is_null(ptr), function() k.store(ptr, at, k.convert(k.f32, value)) end)
  end

  -- A row of weight 0 has zeros, whatever else it holds.
  local function compute(p, row)
    local weight = input(p, row, "weight")
    local function read(i)
      local name = spec.loss.inputs[i]
      return name == "weight" and weight or input(p, row, name)
    end
    local out = L.emit(p.program, read, function(i) return p["parameter" .. i - 1] end)
    local counts = k.ne(weight, 0.0)
    local function give(ptr, at, value) store(ptr, at, k.select(counts, value, 0.0)) end
    give(p.loss, row, out.loss)
    give(p.grad_logprob, row, out.by_logprob)
    give(p.grad_entropy, row, out.by_entropy)
    if of_scores then
      give(p.grad_lse, row, out.by_lse)
      give(p.grad_mean, row, out.by_mean)
      give(p.grad_any, row, k.abs(out.by_logprob) + k.abs(out.by_entropy) + k.abs(out.by_lse) + k.abs(out.by_mean))
    end
    L.each_metric(p.program, function(i) give(p.metrics, p.n * i + row, out.metric(i)) end)
  end

  local function fill(p, row)
    local class = k.convert(k.i32, k.load(k.i8, p.row_class, row))
    local value = k.select(k.eq(class, k.abi.ROW_BAD), k.const(k.f64, 0.0 / 0.0), 0.0)
    k.when(k.ne(class, k.abi.ROW_ACTIVE), function()
      store(p.loss, row, value)
      L.each_metric(p.program, function(i) store(p.metrics, p.n * i + row, value) end)
    end)
  end

  local function body(p)
    local listed = ~k.is_null(p.index)
    local last = k.branch(listed, function() return k.convert(k.i64, k.min(k.load(k.i32, p.count, 0), p.row_end)) end,
      function() return p.n end)
    local first = k.convert(k.i64, k.select(listed, p.row_begin, 0)) + k.convert(k.i64, k.ctaid() * L.threads)
    L.each_row(function(i)
      local at = first + k.convert(k.i64, i)
      k.when(k.lt(at, last), function()
        local row = k.branch(listed, function() return k.convert(k.i64, k.load(k.i32, p.index, at)) end,
          function() return at end)
        k.branch(k.is_null(p.row_class), function() compute(p, row) end, function() fill(p, row) end)
      end)
    end)
  end

  k.kernel {entry = of_scores and "loss_scores" or "loss_rows", threads = L.threads, shared_bytes = L.shared_bytes, body = body}
end
