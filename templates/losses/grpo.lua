-- grpo.lua: PPO's clipped surrogate with advantages relative to a group. A row's weight is 1/(sequences · tokens of its
-- sequence): the mean of the sequences' means. The published loss is grpo+k3.
local ppo = import "ppo"
return {formula = ppo.formula, source = "arXiv:2402.03300, eq. 3", parameters = ppo.parameters, loss = ppo.loss}
