-- skew_kl.lua: distillation by a skewed divergence, which stays finite where the student has no mass: forward_kl of a
-- student mixed with the teacher. skew: the teacher's share of the mixture; 0 would be forward_kl. Over the targets of
-- a row, which are different tokens, and, as one more outcome, everything else. rest_min, rest_weight: as in
-- forward_kl.lua.
return {
  formula = "w·KL(p‖m), m = skew·p + (1 − skew)·q, p teacher, q student, with their rests",
  source = "arXiv:2402.03898, eq. 4",
  parameters = {skew = {default = 0.1, min = 1e-6, max = 0.999}, rest_min = {default = 1e-6, min = 1e-12, max = 0.5},
                rest_weight = {default = 1, min = 0}},
  loss = function(row, p)
    local function term(log_p, share_p, share_q)
      return share_p * (log_p - log(p.skew * share_p + (1 - p.skew) * share_q))
    end
    local log_p = row.teacher_logprob
    local share_p, share_q = exp(log_p), exp(row.target_logprob)
    local rest_p, rest_q = max(1 - sum(share_p), p.rest_min), max(1 - sum(share_q), p.rest_min)
    local each = where(gt(share_p, 0), term(log_p, share_p, share_q), 0)
    local whole = sum(each) + p.rest_weight * term(log(rest_p), rest_p, rest_q)
    return row.weight * whole, {skew_kl = whole}
  end,
}
