-- mapped.lua: what engines have alike whose operands come through tensor maps: those of sm_90a and of what is like it.
--
-- H: the engine's table; its fields rows, columns, depth, stages, cluster, a_bytes, stage_bytes, threads, shared_bytes,
-- warps, of which an epilogue has width columns and blocks of rows at a time, and the places of their sums, H.at,
-- H.column.

return function(k, spec, H, units, options)
  local M = {}

  -- A value that is the same in all lanes. What the consumer role decides by comes from such values alone: its
  -- loops and descriptors then live in uniform registers, which saves a third of the instructions. Roles of one thread
  -- cannot ask for it. With fp32 operands ptxas finds them unasked; asked, it moves pipeline states to other
  -- registers, and dz takes 6 percent longer.
  local whole_warps = false
  function H.uniform(value) return whole_warps and k.uniform(value) or value end
  -- The role of whole warps, which may ask.
  function M.in_whole_warps(role)
    whole_warps = spec.dtype ~= "fp32"
    role()
    whole_warps = false
  end

  function H.rank() return H.cluster > 1 and k.cluster_rank() or k.const(k.i32, 0) end

  -- Where this warp has what tune.lua gives it for its epilogue.
  H.warp_staging_bytes = options.staging
  function H.warp_staging() return H.staging + H.warp * options.staging end

  -- Rows that no box brings are zeros: tensor cores take less power for them, and rows that are there stay fast.
  function M.clear_rows(base)
    local zeros, vectors = {}, H.a_bytes // 16
    for i = 1, 4 do zeros[i] = k.const(k.i32, 0) end
    for stage = 0, H.stages - 1 do
      k.loop(k.tid(), vectors, H.threads, nil, function(i)
        k.shared_store_vector(base + stage * H.stage_bytes + i * 16, zeros)
      end)
    end
    k.proxy_fence()
  end

  -- What every kernel begins its problem with: the active rows, and at its end the steps along K of a product over D.
  function H.active(p) return H.uniform(k.load(k.i32, p.count, 0)) end
  function H.own_steps(p)
    if spec.hidden > 0 then return k.const(k.i32, (spec.hidden + H.depth - 1) // H.depth) end
    return k.max((p.depth + (H.depth - 1)) // H.depth, 1)
  end

  -- And behind those, with an adapter, the steps of its rank: operands of scores go on in maps of their own.
  local adapted = spec.parts.lora or spec.kind == "dz_lora"
  function H.steps(p)
    return adapted and k.max(H.own_steps(p) + (p.rank + (H.depth - 1)) // H.depth, 1) or H.own_steps(p)
  end
  function H.with_adapter(p, operand, map, at)
    if adapted then operand.more = {map = p[map], at = at, from = H.own_steps(p)} end
    return operand
  end

  -- Sums of raw scores plus the bias of their columns, if there is one. first: column of the first; last: none beyond
  -- it
  function H.add_bias(acc, bias, first, last)
    if not spec.bias then return acc end
    local element = ({bf16 = k.bf16, fp16 = k.f16, fp32 = k.f32})[spec.dtype]
    return k.branch(k.is_null(bias), function() return acc end, function()
      local out = {}
      for j = 0, H.width // 8 - 1 do
        for e = 0, 1 do
          local b = k.convert(k.f32, k.load(element, bias, k.min(first + H.column(j, e), last), {const = true}))
          for w = 0, H.blocks - 1 do
            for h = 0, 1 do
              local at = H.at(w, h, j, e)
              out[at] = acc[at] + b
            end
          end
        end
      end
      return out
    end)
  end

  -- Defines the kernel of an entry from its parts:
  --   problem(p) -> q            what all roles must agree on; q.units is how many units the grid has
  --   unit_at(p, q, unit) -> u   one of them. Both are worked out anew for each unit: no role has registers for them
  --   produce(p, u, place, q) -> place         loads a unit's stages, by H.produce, from a place in the ring on
  --   consume(p) -> function(u, place, q, unit) -> place     takes them from there
  --   finish()                   if given, behind the last unit, in the consumer threads
  --   aside(p, warp, warps)      if given, in the warps of each CTA that have no role: number warp of warps
  --   unit_columns               if given, for the descriptor
  -- E: what the engine does of it:
  --   begin()                    first in the body
  --   first_turn()               first in the consumer threads
  --   roles(produce, dispatch, consume, aside)   produce(over_units) in roles that go along K, dispatch() in a thread
  --   idle                       {first, count}, its warps that have no role
  function M.kernel(E, entry, parts)
    local function body(p)
      local function problem() return parts.problem(p) end
      local function produce(over_units)
        over_units(problem, function(unit, place, q) return parts.produce(p, parts.unit_at(p, q, unit), place, q) end)
      end
      local function consume()
        local run = parts.consume(p)
        E.first_turn()
        units.over(problem, k.const(k.i32, 0), function(unit, place, q)
          return H.uniform(run(parts.unit_at(p, q, unit), place, q, unit))
        end, "warp")
        if parts.finish then parts.finish() end
      end
      E.begin()
      local first, count = E.idle.first, E.idle.count
      local function aside() parts.aside(p, k.ctaid() * count + (k.warp() - first), k.nctaid() * count) end
      E.roles(produce, function() units.dispatch(p.turn, problem().units) end, consume, parts.aside and aside)
    end
    k.kernel {
      entry = entry, threads = H.threads, min_ctas = 1, shared_bytes = H.shared_bytes, body = body,
      tile = {rows = H.rows, columns = H.columns, depth = H.depth, stages = H.stages, raster = options.raster,
              cluster = H.cluster, unit_columns = parts.unit_columns},
    }
  end

  return M
end
