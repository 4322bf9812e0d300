-- ppo.lua: the clipped surrogate. Its metrics: was the ratio's gain clipped, the ratio, k3 against the policy that
-- sampled.
return {
  formula = "−w·min(r·A, clamp(r, 1−clip_low, 1+clip_high)·A), r = exp(logprob − old_logprob)",
  source = "arXiv:1707.06347, eq. 7",
  parameters = {clip_low = {default = 0.2, min = 0, max = 1}, clip_high = {default = 0.2, min = 0}},
  loss = function(row, p)
    local d = row.logprob - row.old_logprob
    local ratio = exp(d)
    local kept = ratio * row.advantage
    local bounded = clamp(ratio, 1 - p.clip_low, 1 + p.clip_high) * row.advantage
    return -row.weight * min(kept, bounded),
      {clip_fraction = where(gt(kept, bounded), 1, 0), ratio = ratio, kl_old = expm1(-d) + d}
  end,
}
