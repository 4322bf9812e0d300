-- tune.lua (portable): tile configurations of the kernels that every GPU runs: what a kernel chooses by itself, what
-- can be built, and what it takes. The generator asks it before it builds, the tuner for every candidate
-- (gen/generate/space.c).
--
--   schedule         "cooperative": the warps of a CTA share one tile
--   rows, columns    of a tile. A warp has 64 x 64 of it, of fp32 operands 32 x 64, whatever the tile: 4 or 8 warps.
--                    With 4 two CTAs share a multiprocessor, where one can multiply while the other ends its tile
--   stages           of the ring from memory, each 64 bytes of K
--   cluster          1: CTAs share nothing
--   raster           raster width: the most row panels that go over the columns together, for what they share in L2
--
-- No configuration changes a bit of a result: every accumulator is summed along K in one order (engine.lua), a warp of
-- forward owns its leaf of the canonical order, and sums over the rows of a tile keep the tile's height.

local L = k.import "limits"

local RASTER_MOST, STAGES_LEAST, STAGES_MOST = 64, 2, 12
local STEP_BYTES = 64        -- of a row of either operand in a stage
local STAGING_BYTES = 384    -- of a warp, for what the epilogue of part emit lists
-- The registers of a multiprocessor are those of 8 warps of 128 accumulators a thread.
local WARPS_LEAST, WARPS_MOST = 4, 8

------------------------------------------------------------------------------------------------ what kernels choose
-- 4 x 24 KiB, with the staging of 8 warps all of what a CTA has on sm_86, sm_89 and sm_120.
local function for_scores(spec)
  return {schedule = "cooperative", rows = spec.dtype == "fp32" and 64 or 128, columns = 256, stages = 4, cluster = 1,
          raster = 16}
end

local function for_product(spec)
  local T = for_scores(spec)
  T.raster = 8
  return T
end

-- Both operands go across the warps in copies of a row of K; in two CTAs one copies while the other multiplies.
local function for_weight(spec)
  if spec.dtype == "fp32" then return for_product(spec) end
  return {schedule = "cooperative", rows = 128, columns = 128, stages = 3, cluster = 1, raster = 16}
end

-- Of products of which one side has few columns: 3 CTAs a multiprocessor.
local function for_adapter()
  return {schedule = "cooperative", rows = 128, columns = 64, stages = 6, cluster = 1, raster = 8}
end

-- By kind of kernel. defaults: its choice; warp_columns: of a warp, if not 64; columns: the one number that it can
-- have, if there is one; fixed_rows(spec): whether it keeps the default's rows; across: sides of the tile that are
-- MN-major, of which threads copy a row of K at a time
local KINDS = {
  forward = {defaults = for_scores, columns = k.abi.GROUP_LEAVES * 64},
  dz = {defaults = for_scores, fixed_rows = function(spec) return spec.bias_grad end},
  grad_hidden = {defaults = for_product, across = {"columns"}},
  grad_weight = {defaults = for_weight, across = {"rows", "columns"}},
  lora = {defaults = for_adapter, warp_columns = 32},
}
KINDS.dz_lora = KINDS.dz

--------------------------------------------------------------------------------------------------- what can be built
local function check_values(T, kind, spec, defaults)
  L.among(T, "schedule", {"cooperative"})
  L.among(T, "cluster", {1})
  L.among(T, "rows", spec.dtype == "fp32" and {32, 64, 128, 256} or {64, 128, 256})
  L.among(T, "columns", kind.columns and {kind.columns} or {64, 128, 256})
  if kind.fixed_rows and kind.fixed_rows(spec) and T.rows ~= defaults.rows then
    L.refuse("rows %d is not accepted with a gradient of the bias, which is summed by %d rows", T.rows, defaults.rows)
  end
  L.within(T, "raster", 1, RASTER_MOST)
  L.within(T, "stages", STAGES_LEAST, STAGES_MOST)
end

local function check_resources(T, kind, spec)
  if T.warps > WARPS_MOST then
    L.refuse("%dx%d needs %d accumulators a thread; at most %d fit", T.rows, T.columns,
      T.rows * T.columns // (WARPS_MOST * 32), T.warp_rows * T.warp_columns // 32)
  end
  if T.warps < WARPS_LEAST then
    L.refuse("%dx%d has work for %d warps of %dx%d; at least %d are accepted", T.rows, T.columns, T.warps, T.warp_rows,
      T.warp_columns, WARPS_LEAST)
  end
  for _, side in ipairs(kind.across or {}) do
    if T[side] > T.warps * 32 then
      L.refuse("%dx%d has %d threads; the copies of %d %s take as many", T.rows, T.columns, T.warps * 32, T[side],
        side)
    end
  end
  L.check_shared(T, spec)
end

-- The configuration of the kernel: what the key asks for, else the default. Raises why it cannot be built.
local function choose(spec)
  local kind, T = KINDS[spec.kind] or KINDS.forward, {}
  local defaults, is_adapter = kind.defaults(spec), kind.warp_columns ~= nil
  for name, default in pairs(defaults) do T[name] = spec.tune[name] or default end
  check_values(T, kind, spec, defaults)
  T.warp_rows, T.warp_columns = (spec.dtype == "fp32" or is_adapter) and 32 or 64, kind.warp_columns or 64
  T.warps = T.rows // T.warp_rows * (T.columns // T.warp_columns)
  T.staging = spec.parts.emit and STAGING_BYTES or 0
  T.shared_bytes = T.stages * (T.rows + T.columns) * STEP_BYTES + T.warps * T.staging
  check_resources(T, kind, spec)
  return T
end

-- What a search goes over, each ascending: values that are worth a look, not all that can be built. Beside them it
-- takes the kernel's default.
local axes = {
  schedule = {"cooperative"}, rows = {32, 64, 128, 256}, columns = {64, 128, 256}, stages = {3, 4, 5, 6, 7, 8},
  cluster = {1}, raster = {4, 8, 16, 32, 64},
}

return {choose = choose, axes = axes}
