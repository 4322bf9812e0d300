-- reinforce.lua: the score-function estimate of the policy gradient.
return {
  formula = "−w·A·logprob",
  source = "Williams 1992",
  loss = function(row) return -row.weight * row.advantage * row.logprob end,
}
