-- dapo.lua: PPO's clipped surrogate with more room above than below. A row's weight is 1/tokens.
local ppo = import "ppo"
return {
  formula = ppo.formula,
  source = "arXiv:2503.14476, eq. 8",
  parameters = {clip_low = ppo.parameters.clip_low, clip_high = {default = 0.28, min = 0}},
  loss = ppo.loss,
}
