-- select.lua: log-softmax of a few targets of each row of scores that exist already, and its gradient: one CTA a row.
--
--   u = (z - z_max)·log2(e)/T     s = Σ 2^u     q = Σ u·2^u
--   logprob_j = ln2·(u_{y_j} - log2 s)          entropy = ln2·(log2 s - q/s)
--   dz_v = 2^u·(A + B·u) off the targets        A = (α - β·log2 s)/(s·T), B = β/(s·T)
--                                               α = -Σ_j g_j - e·H, β = -e·ln2
--
-- Shapes: scores (n,V), target and logprob (n,k), entropy (n), stats (n,3) {m, log2 s, H}, grad_scores (n,V).
-- Each thread sums the columns of its vectors in order, over blocks of `unroll` vectors that are all under way at once,
-- then the vectors of the last block that exist, then one of the columns behind the last whole vector; lanes and warps
-- merge in a fixed tree. The order depends on V and dtype alone. fp64 keeps m as the score itself and works in nats:
-- z - m is then exact where it matters.
-- source: https://www.tylerromero.com/posts/2025-02-selective-log-softmax/

local LN2, LOG2E = 0.6931471805599453, 1.4426950408889634

return function(k, spec)
  local S = k.import "score" (k)
  local F = k.import "math64" (k)
  local wide = spec.dtype == "fp64"
  local number = wide and k.f64 or k.f32
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32, fp64 = k.f64})[spec.dtype]
  local target_type = spec.target_dtype == "int64" and k.i64 or k.i32
  local bytes = ({bf16 = 2, fp16 = 2, fp32 = 4, fp64 = 8})[spec.dtype]
  local VECTOR = 16 // bytes
  -- Vectors under way, of all CTAs of a multiprocessor: 64 KiB, twice what reading needs; ptxas would rather take the
  -- registers. The gradient writes what it reads: memory copies 5 % faster where fewer, longer rows are under way.
  local READ = {threads = 256, unroll = 4, min_ctas = wide and 2 or 4}
  local COPY = wide and READ or {threads = 512, unroll = bytes == 4 and 4 or 2, min_ctas = bytes == 4 and 2 or 3}
  local WARPS = READ.threads // 32
  local aligned = spec.alignment >= 16
  local nan, infinity = 0.0 / 0.0, 1.0 / 0.0
  local lowest = wide and -0x1p1000 or S.lowest -- the reference of no scores: 0·lowest is 0 where 0·-inf is NaN
  local f64 = function(v) return v.type == k.f64 and v or k.convert(k.f64, v) end
  local narrow = function(v) return wide and v or k.convert(k.f32, v) end
  local long = function(v) return k.convert(k.i64, v) end
  local columns_of = function(p) return spec.vocab > 0 and k.const(k.i32, spec.vocab) or p.vocab end

  ------------------------------------------------------------------------------------------------ columns of a row
  local function widen(v) return element == number and v or k.convert(number, v) end
  local function rounded(v) return element == number and v or k.convert(element, v) end

  -- Both halves of a word of two bf16 are one operation away from f32.
  local function widen_pairs(words)
    local out = {}
    for i, word in ipairs(words) do
      out[2 * i - 1] = k.bitcast(k.f32, word << 16)
      out[2 * i] = k.bitcast(k.f32, word & -65536)
    end
    return out
  end

  -- The scores of one vector, from column `first` on.
  local function load_vector(row, first, options)
    if not aligned then
      local out = {}
      for i = 1, VECTOR do out[i] = widen(k.load(element, row, first + (i - 1), options)) end
      return out
    end
    local index = k.udiv(first, VECTOR)
    if spec.dtype == "bf16" then return widen_pairs(k.load_vector(k.i32, 4, row, index, options)) end
    local out = k.load_vector(element, VECTOR, row, index, options)
    for i = 1, VECTOR do out[i] = widen(out[i]) end
    return out
  end

  local function store_vector(row, first, values)
    if not aligned then
      for i = 1, VECTOR do k.store(row, first + (i - 1), rounded(values[i])) end
    elseif bytes == 2 then
      local words = {}
      for i = 1, 4 do words[i] = k.pack(element, values[2 * i - 1], values[2 * i]) end
      k.store_vector(row, k.udiv(first, VECTOR), words)
    else
      k.store_vector(row, k.udiv(first, VECTOR), values)
    end
  end

  -- Visits this thread's columns (sweep.lua); one(state, column, value).
  local function sweep(pace, columns, row, options, state, visit, one)
    local function load(first) return load_vector(row, first, options) end
    return k.import "sweep" (k, pace, VECTOR, columns, state, load, visit,
      function(inner, column) return one(inner, column, widen(k.load(element, row, column, options))) end)
  end

  ---------------------------------------------------------------------------------------------------- running sums
  -- 2^u of f32, e^u of f64, and back: the unit of u.
  local function power(u) return wide and F.exp(u) or k.exp2(u) end

  -- m is scaled in f32 (log2 units), the largest score itself in f64.
  local function reference(top, scale) return k.max(wide and top or top * scale, lowest) end
  local function clamp(u)
    return wide and k.select(k.lt(u, lowest), k.const(number, lowest), u) or k.max_nan(u, lowest)
  end
  local function distance(z, m, scale)
    local u = wide and (z - m) * scale or k.fma(z, scale, -m)
    return spec.entropy and clamp(u) or u
  end
  local function between(m, top, scale) return clamp(wide and (m - top) * scale or m - top) end

  local function accumulate(sum, values, scale)
    local top = values[1]
    for i = 2, #values do top = k.max(top, values[i]) end
    local m = k.max(sum.m, reference(top, scale))
    local d = between(sum.m, m, scale)
    local shrink = power(d)
    local out = {m = m, s = sum.s * shrink}
    if spec.entropy then out.q = k.fma(d, sum.s, sum.q) * shrink end
    for i = 1, #values do
      local u = distance(values[i], m, scale)
      local e = power(u)
      out.s = out.s + e
      if out.q then out.q = k.fma(e, u, out.q) end
    end
    return out
  end

  local function merge(a, b, scale)
    if not wide then return S.merge(a, b) end
    local m = k.max(a.m, b.m)
    local da, db = between(a.m, m, scale), between(b.m, m, scale)
    local ea, eb = power(da), power(db)
    local out = {m = m, s = a.s * ea + b.s * eb}
    if a.q then out.q = k.fma(da, a.s, a.q) * ea + k.fma(db, b.s, b.q) * eb end
    return out
  end

  local function shuffle_xor(v, mask)
    if not wide then return k.shuffle_xor(v, mask) end
    local bits = k.bitcast(k.i64, v)
    local low, high = k.convert(k.i32, bits), k.convert(k.i32, k.lshr(bits, 32))
    low, high = k.shuffle_xor(low, mask), k.shuffle_xor(high, mask)
    return k.bitcast(k.f64, k.zext(k.i64, low) | long(high) << 32)
  end

  local WORDS = {"m", "s", spec.entropy and "q" or nil}
  local SLOT = wide and 8 or 4 -- bytes of a number in shared memory

  -- The sum of all threads, in every thread.
  local function over_threads(sum, scale)
    for _, mask in ipairs {16, 8, 4, 2, 1} do
      local other = {}
      for _, word in ipairs(WORDS) do other[word] = shuffle_xor(sum[word], mask) end
      sum = merge(sum, other, scale)
    end
    local shared = k.shared()
    local function slot(warp, i) return shared + (warp * 3 + (i - 1)) * SLOT end
    k.when(k.eq(k.lane(), 0), function()
      for i, word in ipairs(WORDS) do k.shared_store(slot(k.warp(), i), sum[word]) end
    end)
    k.barrier()
    local function of_warp(warp)
      local out = {}
      for i, word in ipairs(WORDS) do out[word] = k.shared_load(number, slot(warp, i)) end
      return out
    end
    return k.loop(k.const(k.i32, 1), WARPS, 1, of_warp(0), function(warp, total)
      return merge(total, of_warp(warp), scale)
    end)
  end

  ---------------------------------------------------------------------------------------------------------- targets
  local function target_at(p, row, j)
    return k.convert(k.i64, k.load(target_type, p.target, row * long(p.k) + long(j), {const = true}))
  end

  -- Whether any target of the row is wanted.
  local function is_wanted(p, row)
    return k.loop(k.const(k.i32, 0), p.k, 1, k.const(k.i1, false), function(j, any)
      return any | k.ne(target_at(p, row, j), p.ignore_index)
    end)
  end

  local function scale_of(p) return wide and p.inverse or k.convert(k.f32, p.inverse * LOG2E) end
  local function row_of(ptr, row, stride) return k.offset(ptr, row * stride * bytes) end
  local UNIT = wide and 1.0 or LN2 -- nats in the unit of u

  local function log_of(s) -- in the unit of u
    local log2 = F.log2(f64(s))
    return wide and log2 * LN2 or log2
  end

  local function store_if(ptr, index, value)
    k.when(~k.is_null(ptr), function() k.store(ptr, index, value) end)
  end

  ---------------------------------------------------------------------------------------------------------- select
  local function fill(p, row)
    local zero = k.const(number, 0.0)
    k.loop(k.tid(), p.k, READ.threads, nil, function(j) store_if(p.logprob, row * long(p.k) + long(j), zero) end)
    k.when(k.eq(k.tid(), 0), function()
      store_if(p.entropy, row, zero)
      for i = 0, 2 do store_if(p.stats, row * 3 + i, zero) end
    end)
  end

  local function finish(p, row, scores, sum, scale)
    local alive = wide and k.gt(sum.s, 0.0) or S.is_alive(sum)
    local log_s = log_of(sum.s)
    k.when(k.eq(k.tid(), 0), function()
      if not wide then
        k.when(S.is_beyond(sum), function() k.atomic_add(p.error_word, 0, k.const(k.i32, 1)) end)
      end
      local entropy = k.const(k.f64, 0.0)
      if spec.entropy then
        entropy = (log_s - f64(sum.q) / f64(sum.s)) * UNIT
        entropy = k.select(k.lt(entropy, 0.0), 0.0, entropy)
      end
      entropy = k.select(alive, narrow(entropy), nan)
      if spec.entropy then store_if(p.entropy, row, entropy) end
      store_if(p.stats, row * 3, sum.m)
      store_if(p.stats, row * 3 + 1, k.select(alive, narrow(wide and log_s * LOG2E or log_s), nan))
      store_if(p.stats, row * 3 + 2, entropy)
    end)
    k.loop(k.tid(), p.k, READ.threads, nil, function(j)
      local id = target_at(p, row, j)
      local good = k.ge(id, 0) & k.lt(id, long(columns_of(p)))
      local z = f64(widen(k.load(element, scores, k.select(good, id, 0))))
      local u = wide and (z - sum.m) * scale or k.fma(z, f64(scale), -f64(sum.m))
      local logprob = (u - log_s) * UNIT
      logprob = k.select(k.gt(logprob, 0.0), 0.0, logprob)
      local wanted = k.ne(id, p.ignore_index)
      local value = k.select(wanted, k.select(good & alive, narrow(logprob), nan), 0.0)
      store_if(p.logprob, row * long(p.k) + long(j), value)
      k.when(wanted & ~good, function() k.atomic_add(p.error_word, 0, k.const(k.i32, 1)) end)
    end)
  end

  local function select(p)
    local row = long(k.ctaid())
    local scale = scale_of(p)
    k.branch(is_wanted(p, row), function()
      local scores = row_of(p.scores, row, p.scores_stride)
      local zero = k.const(number, 0.0)
      local empty = {m = k.const(number, lowest), s = zero, q = spec.entropy and zero or nil}
      local sum = sweep(READ, columns_of(p), scores, {const = true}, empty, function(state, vectors)
        local values = {}
        for _, vector in ipairs(vectors) do
          for _, z in ipairs(vector.values) do
            values[#values + 1] = vector.inside and k.select(vector.inside, z, -infinity) or z
          end
        end
        return accumulate(state, values, scale)
      end, function(state, _, z) return accumulate(state, {z}, scale) end)
      finish(p, row, scores, over_threads(sum, scale), scale)
    end, function() fill(p, row) end)
  end

  ------------------------------------------------------------------------------------------------------ select_grad
  local function upstream(p, row, j)
    return k.branch(k.is_null(p.grad_logprob), function() return k.const(k.f64, 0.0) end,
      function() return f64(k.load(number, p.grad_logprob, row * long(p.k) + long(j))) end)
  end

  local function logprob_at(p, row, j) return f64(k.load(number, p.logprob, row * long(p.k) + long(j))) end

  -- A target's upstream gradient: 0 for one that is ignored, NaN where its logprob is and something is asked of it.
  local function pull(p, row, j)
    local g, logprob = upstream(p, row, j), logprob_at(p, row, j)
    g = k.select(k.ne(g, 0.0) & k.ne(logprob, logprob), k.const(k.f64, nan), g)
    return k.select(k.eq(target_at(p, row, j), p.ignore_index), k.const(k.f64, 0.0), g)
  end

  local function entropy_grad(p, row)
    if not spec.entropy then return k.const(k.f64, 0.0) end
    return k.branch(k.is_null(p.grad_entropy), function() return k.const(k.f64, 0.0) end,
      function() return f64(k.load(number, p.grad_entropy, row)) end)
  end

  -- What every column of a row needs, made by one thread: m, A, B; and whether the row has no gradient: its targets are
  -- all ignored, or nothing is asked of it, which is more than that its targets' gradients cancel.
  local function record(p, row)
    local zero = k.const(k.f64, 0.0)
    local e = entropy_grad(p, row)
    local start = {total = zero, still = k.eq(e, 0.0), ignored = k.const(k.i1, true)}
    local pulls = k.loop(k.const(k.i32, 0), p.k, 1, start, function(j, sums)
      local g, ignored = pull(p, row, j), k.eq(target_at(p, row, j), p.ignore_index)
      return {total = sums.total + g, still = sums.still & k.eq(g, 0.0), ignored = sums.ignored & ignored}
    end)
    local log_s = f64(k.load(number, p.stats, row * 3 + 1)) * (wide and LN2 or 1.0)
    local entropy = f64(k.load(number, p.stats, row * 3 + 2))
    local pulled = k.select(k.eq(e, 0.0), zero, e * entropy)
    local alpha, beta = -pulls.total - pulled, e * -UNIT
    local inverse = F.exp(log_s * -UNIT) * p.inverse
    return {
      m = k.load(number, p.stats, row * 3), a = narrow((alpha - beta * log_s) * inverse), b = narrow(beta * inverse),
      idle = pulls.still | pulls.ignored,
    }
  end

  local function share(r)
    local shared = k.shared()
    k.shared_store(shared, r.m)
    k.shared_store(shared + SLOT, r.a)
    k.shared_store(shared + 2 * SLOT, r.b)
    k.shared_store(shared + 3 * SLOT, k.zext(k.i32, r.idle))
  end

  local function shared_record()
    local shared = k.shared()
    return {
      m = k.shared_load(number, shared), a = k.shared_load(number, shared + SLOT),
      b = k.shared_load(number, shared + 2 * SLOT), idle = k.ne(k.shared_load(k.i32, shared + 3 * SLOT), 0),
    }
  end

  -- Whether another target in front of j is the same column.
  local function is_repeated(p, row, j)
    local id = target_at(p, row, j)
    return k.loop(k.const(k.i32, 0), j, 1, k.const(k.i1, false), function(i, found)
      return found | k.eq(target_at(p, row, i), id)
    end)
  end

  -- dz of a target's column: -Σg·expm1(logprob) there, where Σg is over the targets that name it, and p·(Σg - Σ_j g_j).
  local function correct(p, row, out)
    local e = entropy_grad(p, row)
    local entropy = f64(k.load(number, p.stats, row * 3 + 2))
    local zero = k.const(k.f64, 0.0)
    k.loop(k.tid(), p.k, COPY.threads, nil, function(j)
      local id = target_at(p, row, j)
      local good = k.ge(id, 0) & k.lt(id, long(columns_of(p))) & k.ne(id, p.ignore_index)
      k.when(good & ~is_repeated(p, row, j), function()
        local sums = k.loop(k.const(k.i32, 0), p.k, 1, {here = zero, elsewhere = zero}, function(i, sum)
          local g = pull(p, row, i)
          local same = k.eq(target_at(p, row, i), id)
          return {here = sum.here + k.select(same, g, zero), elsewhere = sum.elsewhere + k.select(same, zero, g)}
        end)
        local logprob = logprob_at(p, row, j)
        local p_y = F.exp(logprob)
        local spread = k.select(k.eq(e, 0.0) | k.eq(p_y, 0.0), zero, e * p_y * (logprob + entropy))
        local dz = -(sums.here * F.expm1(logprob)) - p_y * sums.elsewhere - spread
        k.store(out, id, rounded(narrow(dz * p.inverse)))
      end)
    end)
  end

  local function slopes(p, row, r, out)
    local scale = scale_of(p)
    local function slope(z)
      local u = distance(z, r.m, scale)
      return power(u) * (spec.entropy and k.fma(r.b, u, r.a) or r.a)
    end
    sweep(COPY, columns_of(p), row_of(p.scores, row, p.scores_stride), {}, nil, function(_, vectors)
      for _, vector in ipairs(vectors) do
        local values = {}
        for i, z in ipairs(vector.values) do values[i] = slope(z) end
        if vector.inside then
          k.when(vector.inside, function() store_vector(out, vector.first, values) end)
        else
          store_vector(out, vector.first, values)
        end
      end
    end, function(_, column, z) k.store(out, column, rounded(slope(z))) end)
  end

  local function clear(p, out)
    local columns = columns_of(p)
    local last, zeros = columns // VECTOR * VECTOR, {}
    for i = 1, VECTOR do zeros[i] = k.const(number, 0.0) end
    k.loop(k.tid() * VECTOR, last, COPY.threads * VECTOR, nil, function(first) store_vector(out, first, zeros) end)
    local column = last + k.tid()
    k.when(k.lt(column, columns), function() k.store(out, column, rounded(zeros[1])) end)
  end

  local function select_grad(p)
    local row = long(k.ctaid())
    k.when(k.eq(k.tid(), 0), function() share(record(p, row)) end)
    k.barrier()
    local r = shared_record()
    local out = row_of(p.grad_scores, row, p.grad_scores_stride)
    k.branch(r.idle, function() clear(p, out) end, function()
      slopes(p, row, r, out)
      k.barrier() -- a target's column is written over what its owner wrote
      correct(p, row, out)
    end)
  end

  local function entry(name, pace, shared_bytes, body)
    k.kernel {entry = name, threads = pace.threads, min_ctas = pace.min_ctas, shared_bytes = shared_bytes, body = body}
  end
  entry("select", READ, WARPS * 3 * SLOT, select)
  entry("select_grad", COPY, 4 * SLOT, select_grad)
end
