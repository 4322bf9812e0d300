-- scale.lua: gradients that were made for an upstream gradient of 1, times the one that came.
--
--   values[i,v] = round(values[i,v]·factor)
--
-- CTAs take rows in turn. Nothing is read where the factor is 1.

local THREADS = 256

return function(k, spec)
  local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
  local EACH = spec.alignment >= 16 and (spec.dtype == "fp32" and 4 or 8) or 1 -- elements that a thread takes at a time

  local function times(x, factor)
    local value = spec.dtype == "fp32" and x or k.convert(k.f32, x)
    return spec.dtype == "fp32" and value * factor or k.convert(element, value * factor)
  end

  local function scale_vector(row, i, factor)
    local values = k.load_vector(element, EACH, row, i)
    for j = 1, EACH do values[j] = times(values[j], factor) end
    k.store_vector(row, i, values)
  end

  local function scale(p)
    local factor = k.load(k.f32, p.factor, 0)
    k.exit_if(k.eq(factor, 1.0))
    k.loop(k.ctaid(), p.n, k.nctaid(), nil, function(i)
      local bytes = spec.dtype == "fp32" and 4 or 2
      local row = k.offset(p.values, k.convert(k.i64, i) * p.values_stride * bytes)
      local vectors = EACH > 1 and p.columns // EACH or k.const(k.i32, 0)
      if EACH > 1 then
        k.loop(k.tid(), vectors, THREADS, nil, function(v) scale_vector(row, v, factor) end)
      end
      k.loop(vectors * EACH + k.tid(), p.columns, THREADS, nil, function(v)
        k.store(row, v, times(k.load(element, row, v), factor))
      end)
    end)
  end

  k.kernel {entry = "scale", threads = THREADS, min_ctas = 6, shared_bytes = 0, body = scale}
end
