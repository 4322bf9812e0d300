-- total_variation.lua: half of what teacher and student differ by: 1 less the rate at which a speculative sampler would
-- accept the student's tokens. Over the targets of a row, which are different tokens, and, as one more outcome,
-- everything else. rest_min, rest_weight: as in forward_kl.lua.
return {
  formula = "w/2·(Σ_k |p_k − q_k| + rest_weight·|p_r − q_r|), p teacher, q student, r the rest",
  source = "arXiv:2606.12370, eq. 10",
  parameters = {rest_min = {default = 1e-6, min = 1e-12, max = 0.5}, rest_weight = {default = 1, min = 0}},
  loss = function(row, p)
    local share_p, share_q = exp(row.teacher_logprob), exp(row.target_logprob)
    local rest_p, rest_q = max(1 - sum(share_p), p.rest_min), max(1 - sum(share_q), p.rest_min)
    local whole = 0.5 * (sum(abs(share_p - share_q)) + p.rest_weight * abs(rest_p - rest_q))
    return row.weight * whole, {total_variation = whole}
  end,
}
