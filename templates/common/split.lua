-- split.lua: an fp32 number as three bf16 terms: x = x0 + x1 + x2 to 2^-25 of x, each the rest rounded to nearest.

return function(k)
  -- Two numbers -> three words, a pair of terms each, the larger first.
  local function split(x, y)
    local words = {}
    for i = 1, 3 do
      local word = k.pack(k.bf16, x, y)
      words[i] = word
      if i < 3 then
        x = x - k.bitcast(k.f32, word << 16)
        y = y - k.bitcast(k.f32, word & -65536)
      end
    end
    return words
  end

  -- Six of the nine products of two such sums, those above 2^-25, {term of a, term of b}: smallest first.
  local products = {{3, 1}, {1, 3}, {2, 2}, {2, 1}, {1, 2}, {1, 1}}

  return {split = split, products = products}
end
