-- dots.lua: products of 16 rows of weight and 8 of hidden, in the K order of portable/engine.lua: steps of 16 in ascending
-- order, each element at the same place of its step, and of fp32 the same split into terms. So a product has the bits
-- that forward of sm_80 computes.
--
-- Both operands go from global memory to registers, in stages of 64 bytes along K, some of them at a time. A lane needs
-- word `lane % 4` of each of a stage's four 16-byte chunks. Where memory is aligned it loads a chunk of each of its two
-- rows, and the four lanes of a row exchange words; else it loads word by word.

local STAGE, CHUNK = 64, 16         -- bytes

return function(k, spec)
  local six, W = k.import "split" (k), k.import "weight" (k, spec, spec.wide_weight)
  local D = {}
  local wide = spec.dtype == "fp32"
  local bytes = wide and 4 or 2
  local chunks_whole = spec.alignment >= 16 and not wide -- lanes load chunks: fp32 takes words of 4 bytes as they are
  local single = spec.alignment < bytes * 2 and not wide -- a word is loaded in two halves
  local is_mixed = spec.wide_weight or spec.two_terms    -- the weight becomes terms as it is read (weight.lua)
  local AHEAD = (single or is_mixed) and 2 or 4          -- stages that are loaded together
  local f32 = function(word) return k.bitcast(k.f32, word) end
  local i64 = function(v) return k.convert(k.i64, v) end

  ---------------------------------------------------------------------------------------------------- loads
  local function load_word(pointer)
    if not single then return k.load(k.i32, pointer, 0, {const = true}) end
    local low, high = k.load(k.i16, pointer, 0, {const = true}), k.load(k.i16, pointer, 1, {const = true})
    return k.zext(k.i32, low) | (k.zext(k.i32, high) << 16)
  end

  -- Word `lane % 4` of each chunk of a stage. real(chunk): whether a chunk, 0 to 3, is one of D; nil: all are. A chunk
  -- that is not real is zero, and chunk 0, which is, is read in its place.
  local function load_words(pointer, real)
    local words = {}
    for chunk = 0, 3 do
      local at = chunk * CHUNK
      local word = load_word(k.offset(pointer, real and k.select(real(chunk), k.const(k.i32, at), 0) or at))
      words[chunk + 1] = real and k.select(real(chunk), word, 0) or word
    end
    return words
  end

  -- Chunk `lane % 4` of a stage.
  local function load_chunk(pointer, real)
    if not real then return k.load_vector(k.i32, 4, pointer, 0, {const = true}) end
    local mine = k.lane() & 3
    local words = k.load_vector(k.i32, 4, pointer, k.select(real(mine), mine, 0), {const = true})
    for i = 1, 4 do words[i] = k.select(real(mine), words[i], 0) end
    return words
  end

  -- Chunk t of lane t -> word t of each chunk, among the four lanes of a row.
  local function exchange(words)
    for _, step in ipairs {{mask = 1, {1, 2}, {3, 4}}, {mask = 2, {1, 3}, {2, 4}}} do
      local is_upper = k.ne(k.lane() & step.mask, 0)
      for _, pair in ipairs(step) do
        local low, high = words[pair[1]], words[pair[2]]
        local other = k.shuffle_xor(k.select(is_upper, low, high), step.mask)
        words[pair[1]], words[pair[2]] = k.select(is_upper, other, low), k.select(is_upper, high, other)
      end
    end
    return words
  end

  -- What load_chunk or load_words would load of stage number `stage` of a row of weight, had it the terms of K.
  local function load_terms(row, stage, chunks, real)
    local mine, words = k.lane() & 3, {}
    local function words_of(chunk, i)
      local made = W.words(row, stage * 4 + (real and k.select(real(chunk), chunk, 0) or chunk), chunks, i)
      for j = 1, real and #made or 0 do made[j] = k.select(real(chunk), made[j], 0) end
      return made
    end
    if chunks_whole then return words_of(mine) end
    for chunk = 0, 3 do words[chunk + 1] = words_of(k.const(k.i32, chunk), mine)[1] end
    return words
  end

  ------------------------------------------------------------------------------------------------- products
  -- Stage number `stage` of both rows of weight and of hidden.
  local function load_stage(from, stage, real)
    local at = i64(stage) * STAGE
    local load_row = chunks_whole and load_chunk or load_words
    local in_chunk = chunks_whole and not real and (k.lane() & 3) * CHUNK or 0
    local function row_of(row)
      if from.chunks then return load_terms(row, stage, from.chunks, real) end
      return load_row(k.offset(k.offset(row, at), in_chunk), real)
    end
    return {
      first = row_of(from.first),
      second = row_of(from.second),
      hidden = load_words(k.offset(from.hidden, at), real),
    }
  end

  local function terms_of(words) -- of the two halves of a step
    return six.split(f32(words[1]), f32(words[2])), six.split(f32(words[3]), f32(words[4]))
  end

  local function multiply(stage, acc)
    local first, second, h = stage.first, stage.second, stage.hidden
    if wide then
      local a, b = terms_of(first)
      local c, d = terms_of(second)
      local g, f = terms_of(h)
      local rows, hidden = {}, {}
      for i = 1, 3 do rows[i], hidden[i] = {a[i], c[i], b[i], d[i]}, {g[i], f[i]} end
      return six.multiply(rows, hidden, acc, true)
    end
    if chunks_whole then first, second = exchange(first), exchange(second) end
    for step = 1, 3, 2 do
      local rows = {first[step], second[step], first[step + 1], second[step + 1]}
      acc = k.mma(spec.dtype, rows, {h[step], h[step + 1]}, acc)
    end
    return acc
  end

  local function stages_from(from, stage, count, acc)
    local loaded = {}
    for i = 1, count do loaded[i] = load_stage(from, stage + (i - 1)) end
    for i = 1, count do acc = multiply(loaded[i], acc) end
    return acc
  end

  -- from: where this lane's words of its rows start: first and second of A, hidden of B; or where rows of A start that
  -- become terms, of so many chunks each; acc: what is there already
  local function product(depth, from, acc)
    local chunks = depth * bytes // CHUNK
    local stages, rest = k.lshr(chunks, 2), chunks & 3
    local zero = k.const(k.i32, 0)
    local together = stages // AHEAD * AHEAD
    acc = k.loop(zero, together, AHEAD, acc, function(stage, now) return stages_from(from, stage, AHEAD, now) end)
    acc = k.loop(together, stages, 1, acc, function(stage, now) return stages_from(from, stage, 1, now) end)
    return k.branch(k.ne(rest, 0), function()
      return multiply(load_stage(from, stages, function(chunk) return k.gt(rest, chunk) end), acc)
    end, function() return acc end)
  end

  -- Row `row` (i32) of a matrix of the operand dtype, as this lane reads it in the place of A or of B.
  local function row_of_a(matrix, row, stride)
    local word = chunks_whole and 0 or (k.lane() & 3) * 4
    return k.offset(k.offset(matrix, i64(row) * stride * bytes), word)
  end

  local function row_of_b(matrix, row, stride)
    return k.offset(k.offset(matrix, i64(row) * stride * bytes), (k.lane() & 3) * 4)
  end

  -- Scores without a bias. Of A, columns of the head, lane l has those of places l/4 and l/4 + 8, first and second; of B
  -- the row of place l/4: row of hidden, and active row `a`. It gets those of {column, row} at places {l/4, 2(l%4)},
  -- {l/4, 2(l%4) + 1}, and the same of column l/4 + 8. Behind the products of D come those of an adapter's rank.
  function D.scores(p, first, second, row, a)
    local acc = {}
    for i = 1, 4 do acc[i] = k.const(k.f32, 0.0) end
    local function columns(matrix, stride, hidden)
      return {first = row_of_a(matrix, first(), stride), second = row_of_a(matrix, second(), stride), hidden = hidden}
    end
    local hidden = row_of_b(p.hidden, row(), p.hidden_stride)
    if is_mixed then
      local function row_of(column) return k.offset(p.weight, i64(column) * p.weight_stride * W.bytes) end
      acc = product(p.depth * W.terms,
        {first = row_of(first()), second = row_of(second()), hidden = hidden, chunks = k.lshr(p.depth, 3)}, acc)
    else
      acc = product(p.depth, columns(p.weight, p.weight_stride, hidden), acc)
    end
    if not spec.lora then return acc end
    return product(p.rank, columns(p.lora_b, p.lora_b_stride, row_of_b(p.lora_u, a, i64(p.rank))), acc)
  end

  return D
end
