-- loss_scores.lua: loss_rows.lua of a program that reads values of all scores of a row: lse, mean_score.

return function(k, spec)
  k.import "loss_rows" (k, spec)
end
