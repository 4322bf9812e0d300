-- k2.lua: a term to add: an estimate of the KL divergence from a reference policy, biased, of small variance.
return {
  formula = "w·beta·d²/2, d = logprob − ref_logprob",
  source = "Schulman, \"Approximating KL divergence\", 2020",
  parameters = {beta = 0},
  loss = function(row, p)
    local d = row.logprob - row.ref_logprob
    local kl = 0.5 * d * d
    return row.weight * p.beta * kl, {kl = kl}
  end,
}
