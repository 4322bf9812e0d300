-- dr_grpo.lua: PPO's clipped surrogate without a length bias. A row's weight is 1/(sequences · the greatest length),
-- one constant for all rows.
local ppo = import "ppo"
return {formula = ppo.formula, source = "arXiv:2503.20783", parameters = ppo.parameters, loss = ppo.loss}
