-- k3.lua: a term to add: an estimate of the KL divergence from a reference policy, unbiased, never negative.
return {
  formula = "w·beta·(exp(−d) − 1 + d), d = logprob − ref_logprob",
  source = "Schulman, \"Approximating KL divergence\", 2020",
  parameters = {beta = 0},
  loss = function(row, p)
    local d = row.logprob - row.ref_logprob
    local kl = expm1(-d) + d
    return row.weight * p.beta * kl, {kl = kl}
  end,
}
