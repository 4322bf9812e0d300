-- cross_entropy.lua: that of supervised fine-tuning, with label smoothing and z-loss. With weight 1/(tokens) a row it is
-- torch.nn.functional.cross_entropy(..., label_smoothing=e) plus z_loss times the mean of lse².
return {
  formula = "w·((1 − e)·nll + e·(lse − mean_score) + z_loss·lse²), nll = −logprob, e = label_smoothing",
  source = "arXiv:1512.00567, section 7; z-loss: arXiv:2204.02311, section 5",
  parameters = {label_smoothing = {default = 0, min = 0, max = 1}, z_loss = {default = 0, min = 0}},
  loss = function(row, p)
    local nll, square, e = -row.logprob, row.lse * row.lse, p.label_smoothing
    local smoothed = (1 - e) * nll + e * (row.lse - row.mean_score)
    return row.weight * (smoothed + p.z_loss * square), {nll = nll, lse_square = square}
  end,
}
