-- token_entropy.lua: a term to add: the entropy bonus where a row's weight is no mean of tokens, as in grpo:
-- token_share is 1/tokens for every row of a weight.
return {
  formula = "−token_share·entropy_weight·H",
  source = "Williams and Peng 1991",
  parameters = {entropy_weight = 0},
  vectors = {"token_share"},
  loss = function(row, p) return -row.token_share * p.entropy_weight * row.entropy, {entropy = row.entropy} end,
}
