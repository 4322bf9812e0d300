-- lk.lua: of draft training: forward_kl where student and teacher share little, total_variation where they share much,
-- over the targets of a row, which are different tokens, and, as one more outcome, everything else. The blend is a
-- constant to the gradient. decay: how fast the blend turns with the acceptance rate a. rest_min, rest_weight: as in
-- forward_kl.lua.
return {
  formula = "w·(b·forward_kl + (1 − b)·total_variation), b = exp(−decay·a), a = Σ min(p, q)",
  source = "arXiv:2602.23881",
  parameters = {decay = {default = 3, min = 0}, rest_min = {default = 1e-6, min = 1e-12, max = 0.5},
                rest_weight = {default = 1, min = 0}},
  loss = function(row, p)
    local log_p, log_q = row.teacher_logprob, row.target_logprob
    local share_p, share_q = exp(log_p), exp(log_q)
    local rest_p, rest_q = max(1 - sum(share_p), p.rest_min), max(1 - sum(share_q), p.rest_min)
    local kl = sum(where(gt(share_p, 0), share_p * (log_p - log_q), 0))
      + p.rest_weight * (rest_p * (log(rest_p) - log(rest_q)))
    local apart = 0.5 * (sum(abs(share_p - share_q)) + p.rest_weight * abs(rest_p - rest_q))
    local acceptance = sum(min(share_p, share_q)) + p.rest_weight * min(rest_p, rest_q)
    local blend = detach(exp(-p.decay * acceptance))
    local whole = blend * kl + (1 - blend) * apart
    return row.weight * whole, {lk = whole, acceptance = acceptance}
  end,
}
