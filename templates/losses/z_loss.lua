-- z_loss.lua: a term to add: it pulls a row's log-sum-exp towards 0, so that scores stay small.
return {
  formula = "w·z_loss·lse²",
  source = "arXiv:2204.02311, section 5",
  parameters = {z_loss = {default = 0, min = 0}},
  loss = function(row, p)
    local square = row.lse * row.lse
    return row.weight * p.z_loss * square, {lse_square = square}
  end,
}
