-- weight.lua: rows of the weight as kernels read them by themselves.
--
-- They stand in the operand dtype or, where spec.wide_weight says so, in f32. Products take of these the operand dtype:
-- rounded, or with spec.two_terms the two terms that operand_terms.lua makes; so do scores here. With two terms K has
-- those of all D columns side by side; of a weight in the operand dtype each is itself, and hidden has the two.

return function(k, spec, is_wide)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  local type = is_wide and k.f32 or element
  local W = {bytes = type == k.f32 and 4 or 2, terms = spec.two_terms and 2 or 1}
  local constant = {const = true}

  -- Vector `i` of n elements of a row, as they stand.
  function W.load(n, row, i)
    if not is_wide or n <= 4 then return k.load_vector(type, n, row, i, constant) end
    local low = k.load_vector(type, 4, row, i * 2, constant)
    return table.move(k.load_vector(type, 4, row, i * 2 + 1, constant), 1, 4, 5, low)
  end

  local function rounded(x) return k.convert(k.f32, k.convert(element, x)) end

  -- One of them as gradients take it, f32.
  function W.value(x) return is_wide and not spec.two_terms and rounded(x) or k.convert(k.f32, x) end

  -- Two of them as a word of K, in term 2 or else 1.
  local function word(low, high, is_second)
    local first = k.pack(element, low, high)
    if not (is_wide and spec.two_terms) then return first end
    return k.select(is_second, k.pack(element, low - rounded(low), high - rounded(high)), first)
  end

  -- Words of chunk `c` of K, eight elements of a row: all four of them; or number `i` alone, read element by element.
  -- chunks: of D
  function W.words(row, c, chunks, i)
    local is_second = k.ge(c, chunks)
    local chunk, x, words = k.select(is_second, c - chunks, c), nil, {}
    if i then
      local at = chunk * 8 + i * 2
      x = {k.load(type, row, at, constant), k.load(type, row, at + 1, constant)}
    else
      x = W.load(8, row, chunk)
    end
    for j = 1, #x do x[j] = k.convert(k.f32, x[j]) end
    for j = 1, #x, 2 do words[#words + 1] = word(x[j], x[j + 1], is_second) end
    return words
  end

  return W
end
