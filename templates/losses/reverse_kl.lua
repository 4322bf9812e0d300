-- reverse_kl.lua: distillation from a teacher's log-probabilities, on what the student says: the Kullback-Leibler
-- divergence of the teacher from the student over the targets of a row and, as one more outcome, everything else.
-- Targets of a row are different tokens. rest_min, rest_weight: as in forward_kl.lua.
return {
  formula = "w·(Σ_k q_k·(log q_k − log p_k) + rest_weight·q_r·(log q_r − log p_r)), p teacher, q student, r the rest",
  source = "arXiv:2306.08543, with the tail as one outcome",
  parameters = {rest_min = {default = 1e-6, min = 1e-12, max = 0.5}, rest_weight = {default = 1, min = 0}},
  loss = function(row, p)
    local log_p, log_q = row.teacher_logprob, row.target_logprob
    local share = exp(log_q)
    local kl = sum(where(gt(share, 0), share * (log_q - log_p), 0))
    local rest_p, rest_q = max(1 - sum(exp(log_p)), p.rest_min), max(1 - sum(share), p.rest_min)
    local whole = kl + p.rest_weight * (rest_q * (log(rest_q) - log(rest_p)))
    return row.weight * whole, {reverse_kl = whole}
  end,
}
