-- Every word, operator and kind of input of a loss, each with a derivative.
return {
  parameters = {low = -1, high = {default = 2, min = 0}},
  vectors = {"reward", "margin"},
  loss = function(row, p)
    local d = row.logprob - row.old_logprob
    local x = min(d, row.reward) + max(d, row.margin) + clamp(d, p.low, p.high * row.weight)
    local y = exp(x / 8) - expm1(-d) * abs(row.ref_logprob) + log(1 + x ^ 2) / sqrt(2 + row.entropy)
    local near = (lt(d, 1) & ge(x, -3) | eq(row.advantage, 0)) & ~le(y, -100)
    local out = where(near, y, row.entropy * y) + detach(y)
    return out * where(ne(row.advantage, 1) & gt(row.weight, 0), row.weight, 1 / 4), {near = where(near, 1, 0), x = x}
  end,
}
