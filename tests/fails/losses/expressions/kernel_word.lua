-- expect: kernel_word.lua:2: the sandbox has no global 'k'
return function(row) return k.exp2(row.logprob) end
