-- A loss of a user's file, with a parameter and a vector: REINFORCE whose tokens have shares of their own.
return {
  parameters = {share = 1},
  vectors = {"worth"},
  loss = function(row, p)
    return -row.weight * p.share * row.worth * row.advantage * row.logprob
  end,
}
