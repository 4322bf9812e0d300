-- neg_log_acceptance.lua: of draft training: minus the log of the rate at which a speculative sampler accepts the
-- student's tokens, over the targets of a row, which are different tokens, and, as one more outcome, everything else.
-- acceptance_min: the least that the rate is taken to be; below it there is no gradient. rest_min, rest_weight: as in
-- forward_kl.lua.
return {
  formula = "−w·log a, a = Σ_k min(p_k, q_k) + rest_weight·min(p_r, q_r), p teacher, q student, r the rest",
  source = "arXiv:2602.23881",
  parameters = {acceptance_min = {default = 1e-30, min = 1e-300, max = 0.5},
                rest_min = {default = 1e-6, min = 1e-12, max = 0.5}, rest_weight = {default = 1, min = 0}},
  loss = function(row, p)
    local share_p, share_q = exp(row.teacher_logprob), exp(row.target_logprob)
    local rest_p, rest_q = max(1 - sum(share_p), p.rest_min), max(1 - sum(share_q), p.rest_min)
    local acceptance = sum(min(share_p, share_q)) + p.rest_weight * min(rest_p, rest_q)
    local whole = -log(max(acceptance, p.acceptance_min))
    return row.weight * whole, {neg_log_acceptance = whole, acceptance = acceptance}
  end,
}
