-- expect: row_write.lua:3: a row (logprob, entropy, old_logprob, ref_logprob, advantage, weight, target_logprob, teacher_logprob, lse, mean_score) is read-only: 'logprob' cannot be set
return function(row, p)
  row.logprob = 0
  return row.logprob
end
