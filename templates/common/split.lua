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

  -- c + a·b of one step. a, b: the words of each term, as k.mma takes them. The products start from zero, since the tensor
  -- core truncates where it aligns. is_turned: a and b change places in the order of the products, as in bᵀ·aᵀ
  local function multiply(a, b, c, is_turned)
    local of_a, of_b = is_turned and 2 or 1, is_turned and 1 or 2
    local sum = {0.0, 0.0, 0.0, 0.0}
    for _, pair in ipairs(products) do sum = k.mma("bf16", a[pair[of_a]], b[pair[of_b]], sum) end
    local out = {}
    for i = 1, 4 do out[i] = c[i] + sum[i] end
    return out
  end

  return {split = split, products = products, multiply = multiply}
end
