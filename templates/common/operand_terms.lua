-- operand_terms.lua: an operand of another dtype, as products take it: terms of 16 bits side by side.
--
--   term 1 = x rounded to nearest even     term 2 = x - term 1, rounded likewise
--
-- One warp a row.

local WARPS = 8

return function(k, spec)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  local EACH = spec.alignment >= 16 and spec.dtype ~= "fp32" and 8 or 1 -- elements that a lane takes at a time

  local function load_wide(from, i)
    if EACH == 1 then return {k.load(k.f32, from, i, {const = true})} end
    local x = k.load_vector(k.f32, 4, from, i * 2, {const = true})
    return table.move(k.load_vector(k.f32, 4, from, i * 2 + 1, {const = true}), 1, 4, 5, x)
  end

  local function load_narrow(from, i)
    if EACH == 1 then return {k.convert(k.f32, k.load(element, from, i, {const = true}))} end
    local x = k.load_vector(element, EACH, from, i, {const = true})
    for j = 1, EACH do x[j] = k.convert(k.f32, x[j]) end
    return x
  end

  local function round(x)
    local rounded = {}
    for j = 1, #x do rounded[j] = k.convert(element, x[j]) end
    return rounded
  end

  local function rest(x, term)
    local left = {}
    for j = 1, #x do left[j] = x[j] - k.convert(k.f32, term[j]) end
    return left
  end

  local function store(to, i, term)
    if #term == 1 then k.store(to, i, term[1]) else k.store_vector(to, i, term) end
  end

  local function operand_terms(p)
    local row = k.ctaid() * WARPS + k.warp()
    k.exit_if(k.ge(row, p.rows))
    local at, wide = k.convert(k.i64, row), k.ne(p.is_wide, 0)
    local bytes = spec.dtype == "fp32" and 4 or 2
    local from = k.offset(p.source, at * p.source_stride * k.select(wide, k.const(k.i64, 4), bytes))
    local to = k.offset(p.out, at * p.out_stride * bytes)
    local second = k.offset(to, k.convert(k.i64, p.depth) * bytes)
    local depth = k.select(k.eq(row, p.rows - 1), p.last_depth, p.depth)

    -- Of `each` elements from the i-th on; loads(i) -> x
    local function each(first, last, loads, narrow, one)
      k.loop(first + k.lane(), last, 32, nil, function(i)
        local x = loads(i)
        local term = one(x)
        store(to, i, term)
        k.when(k.gt(p.terms, 1), function()
          store(second, i, narrow and term or one(rest(x, term)))
        end)
      end)
    end
    local function all(loads, narrow)
      each(k.const(k.i32, 0), depth // EACH, loads, narrow, round)
      if EACH > 1 then                               -- what does not fill a vector
        local whole = EACH
        EACH = 1
        each(depth // whole * whole, depth, loads, narrow, round)
        EACH = whole
      end
    end
    local function of_wide() all(function(i) return load_wide(from, i) end, false) end
    k.branch(wide, function()
      if EACH == 1 then return of_wide() end
      k.branch(k.eq(k.bitcast(k.i64, p.source) & 15, 0), of_wide, function() -- a bias may begin anywhere
        local vector = EACH
        EACH = 1
        of_wide()
        EACH = vector
      end)
    end, function() all(function(i) return load_narrow(from, i) end, true) end)
  end

  k.kernel {entry = "operand_terms", threads = WARPS * 32, min_ctas = 6, shared_bytes = 0, body = operand_terms}
end
