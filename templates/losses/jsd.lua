-- jsd.lua: distillation between forward_kl and reverse_kl: the generalised Jensen-Shannon divergence over the targets of
-- a row and, as one more outcome, everything else. Targets of a row are different tokens. rest_min, rest_weight: as in
-- forward_kl.lua.
return {
  formula = "w·(mix·KL(p‖m) + (1 − mix)·KL(q‖m)), m = mix·p + (1 − mix)·q, p teacher, q student, with their rests",
  source = "arXiv:2306.13649, eq. 1",
  parameters = {mix = {default = 0.5, min = 0.001, max = 0.999}, rest_min = {default = 1e-6, min = 1e-12, max = 0.5},
                rest_weight = {default = 1, min = 0}},
  loss = function(row, p)
    local function term(log_p, log_q, share_p, share_q)
      local log_m = log(p.mix * share_p + (1 - p.mix) * share_q)
      return where(gt(share_p, 0), p.mix * share_p * (log_p - log_m), 0)
        + where(gt(share_q, 0), (1 - p.mix) * share_q * (log_q - log_m), 0)
    end
    local log_p, log_q = row.teacher_logprob, row.target_logprob
    local share_p, share_q = exp(log_p), exp(log_q)
    local rest_p, rest_q = max(1 - sum(share_p), p.rest_min), max(1 - sum(share_q), p.rest_min)
    local whole = sum(term(log_p, log_q, share_p, share_q))
      + p.rest_weight * term(log(rest_p), log(rest_q), rest_p, rest_q)
    return row.weight * whole, {jsd = whole}
  end,
}
