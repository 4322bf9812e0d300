-- nll.lua: the negative log-likelihood of the target; with weight 1 a row, cross entropy.
return {
  formula = "−w·logprob",
  source = "maximum likelihood",
  loss = function(row) return -row.weight * row.logprob end,
}
