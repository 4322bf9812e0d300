-- expect: both.lua:1: loss 'both' reads values of targets and logprob, which a row has for one target alone
return function(row) return sum(row.target_logprob) + row.logprob end
