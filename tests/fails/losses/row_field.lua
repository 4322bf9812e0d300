-- expect: row_field.lua:2: a row has no 'logprobs'; there is logprob, entropy, old_logprob, ref_logprob, advantage, weight, reward
return {vectors = {"reward"}, loss = function(row) return -row.logprobs * row.reward end}
