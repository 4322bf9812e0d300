-- A loop that carries a nested table: phis in the fixed order array part, then keys sorted.
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, min_ctas = 2, shared_bytes = 1024, body = function(p)
    local start = {zeta = k.const(k.i32, 0), m = {p.cap_in, k.const(k.f32, 0.0)}, alpha = k.ctaid()}
    local done = k.loop(0, p.depth, 4, start, function(i, s)
      return {alpha = s.alpha + i, m = {s.m[2], s.m[1] * p.cap_in}, zeta = s.alpha}
    end)
    k.store(p.part, 0, done.m[1])
    k.store(p.count, done.zeta, done.alpha)
  end}
end
