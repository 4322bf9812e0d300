-- loss_rows.lua: a loss program over arrays of rows, one thread a row: see runtime/abi.h.

local INPUTS = {"logprob", "entropy", "old_logprob", "ref_logprob", "advantage", "weight",
                "vector0", "vector1", "vector2", "vector3", "vector4", "vector5", "vector6", "vector7"}
local THREADS = 256

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

  local function body(p)
    local row = k.convert(k.i64, k.ctaid()) * THREADS + k.convert(k.i64, k.tid())
    k.exit_if(k.ge(row, p.n))
    local function store(ptr, at, value)
      k.when(~k.is_null(ptr), function() k.store(ptr, at, k.convert(k.f32, value)) end)
    end
    local out = L.emit(spec.loss, function(i) return input(p, row, INPUTS[i]) end,
      function(i) return p["parameter" .. i - 1] end)
    store(p.loss, row, out.loss)
    store(p.grad_logprob, row, out.by_logprob)
    store(p.grad_entropy, row, out.by_entropy)
    for i, metric in ipairs(out.metrics) do store(p.metrics, p.n * (i - 1) + row, metric) end
  end

  k.kernel {entry = "loss_rows", threads = THREADS, body = body}
end
