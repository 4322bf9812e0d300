-- Conditions: an early exit, a branch with results, a branch without, a while loop.
return function(k, spec)
  k.kernel {entry = "forward", threads = 64, body = function(p)
    local row = k.ctaid() * 64 + k.tid()
    k.exit_if(k.ge(row, p.vocab_valid))
    local x = k.branch(k.is_null(p.bias),
      function() return {value = k.const(k.f32, 0.0), from = p.depth} end,
      function() return {value = k.load(k.f32, p.bias, row, {const = true}), from = 1} end)
    local steps = k.while_({n = x.from, count = k.const(k.i32, 0)},
      function(s) return k.gt(s.n, 1) end,
      function(s) return {n = s.n // 2, count = s.count + 1} end)
    k.when(k.eq(steps.count, 5), function() k.store(p.zy, row, x.value) end)
  end}
end
