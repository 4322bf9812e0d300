-- cispo.lua: REINFORCE with a clipped importance weight that has no gradient of its own. A row's weight is 1/tokens.
return {
  formula = "−w·detach(clamp(r, 1−clip_low, 1+clip_high))·A·logprob, r = exp(logprob − old_logprob)",
  source = "arXiv:2506.13585, eq. 4",
  parameters = {clip_low = {default = 1, min = 0, max = 1}, clip_high = {default = 4, min = 0}},
  loss = function(row, p)
    local d = row.logprob - row.old_logprob
    local ratio = exp(detach(d))
    local bounded = clamp(ratio, 1 - p.clip_low, 1 + p.clip_high)
    return -row.weight * bounded * row.advantage * row.logprob,
      {clip_fraction = where(ne(bounded, ratio), 1, 0), ratio = ratio, kl_old = expm1(-d) + d}
  end,
}
