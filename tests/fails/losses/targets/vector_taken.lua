-- expect: vector_taken.lua:1: vector 'teacher_logprob': every target has that already
return {vectors = {"teacher_logprob"}, loss = function(row) return row.logprob end}
