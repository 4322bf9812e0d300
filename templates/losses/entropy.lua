-- entropy.lua: a term to add: a bonus for the entropy of the policy.
return {
  formula = "−w·entropy_weight·H",
  source = "Williams and Peng 1991",
  parameters = {entropy_weight = 0},
  loss = function(row, p) return -row.weight * p.entropy_weight * row.entropy, {entropy = row.entropy} end,
}
