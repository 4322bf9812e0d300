-- forward_kl.lua: distillation from a teacher's best tokens: the Kullback-Leibler divergence of the student from the
-- teacher over the targets of a row and, as one more outcome, everything else. Targets of a row are different tokens.
--
-- What a distribution has left is 1 − Σ, at least rest_min: the sum of float32 log-probabilities of nearly all of it ends
-- on either side of 1. There the student's rest is a constant. rest_weight = 0 leaves the last outcome out.
return {
  formula = "w·(Σ_k p_k·(log p_k − log q_k) + rest_weight·p_r·(log p_r − log q_r)), p teacher, q student, r the rest",
  source = "arXiv:2306.13649, with the teacher's tail as one outcome",
  parameters = {rest_min = {default = 1e-6, min = 1e-12, max = 0.5}, rest_weight = {default = 1, min = 0}},
  loss = function(row, p)
    local log_p, log_q = row.teacher_logprob, row.target_logprob
    local share = exp(log_p)
    local kl = sum(where(gt(share, 0), share * (log_p - log_q), 0))
    local rest_p, rest_q = max(1 - sum(share), p.rest_min), max(1 - sum(exp(log_q)), p.rest_min)
    local whole = kl + p.rest_weight * (rest_p * (log(rest_p) - log(rest_q)))
    return row.weight * whole, {forward_kl = whole}
  end,
}
