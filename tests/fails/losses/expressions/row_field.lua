-- expect: row_field.lua:2: a row (logprob, entropy, old_logprob, ref_logprob, advantage, weight, reward, target_logprob, teacher_logprob, lse, mean_score) has no value 'logprobs'
return {vectors = {"reward"}, loss = function(row) return -row.logprobs * row.reward end}
