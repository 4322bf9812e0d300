-- tune.lua: tile configurations of sm_90a's kernels: what a kernel chooses by itself, what can be built, and what it
-- takes. The generator asks it before it builds, the tuner for every candidate (gen/generate/space.c).
--
--   schedule         "ping-pong" or "cooperative", see engine.lua
--   rows, columns    of a tile: what a CTA, or in ping-pong one of its two warpgroups, multiplies at a time
--   stages           of the ring from memory; fp32 operands have a second ring, one stage shorter (terms.lua)
--   cluster          CTAs along the rows that share the tiles of the second operand
--   raster           raster width: the most row panels that go over the columns together, for what they share in L2

local C, L = k.import "choice", k.import "limits"

-- Accumulator registers per MMA thread: of 240 (fp32 operands: 208, of which one k16 step takes up to 64) beside
-- them.
local ACCUMULATORS, ACCUMULATORS_WIDE = 192, 96

------------------------------------------------------------------------------------------------ what kernels choose
-- Few rows: a head is read for them and little is multiplied. Two CTAs share what they read, as all multiprocessors can
-- then be busy with it. More stages, or an odd number of them, read more slowly.
local function for_short()
  return {schedule = "ping-pong", rows = 64, columns = 192, stages = 6, cluster = 2, raster = 1}
end

local function for_scores(spec)
  if spec.parts.short then return for_short() end
  local wide = spec.dtype == "fp32"
  return {schedule = wide and "cooperative" or "ping-pong", rows = 128, columns = wide and 128 or 192,
          stages = wide and 4 or 5, cluster = 2, raster = C.raster(spec, 128 * 2)}
end

-- Tiles of products of 16-bit operands, for C.tile_of.
local TILES = {
  {rows = 128, columns = 256, cluster = 2, loss = 1},
  {rows = 256, columns = 192, cluster = 1, loss = 1.005},
  {rows = 256, columns = 128, cluster = 1, loss = 1.02},
}

local function for_products(spec)
  local best = spec.dtype == "fp32" and {rows = 128, columns = 128, cluster = 2} or C.tile_of(TILES, spec.hidden)
  return {schedule = "cooperative", rows = best.rows, columns = best.columns, stages = 4, cluster = best.cluster,
          raster = 8}
end

-- Of products that have an adapter's rank in the place of D: tiles no wider than need be, as dz is read for little. Of G
-- a unit goes over all columns of the chunk: panels of 128 rows, so that of 8192 they take as long as the rest does.
local function for_adapter(spec)
  local narrow, wide = spec.hidden <= 64, spec.dtype == "fp32"
  if not wide and spec.hidden > 128 then return for_products(spec) end
  return {schedule = "cooperative", rows = 128, columns = narrow and 64 or 128, stages = wide and 4 or narrow and 9 or 7,
          cluster = 1, raster = 8}
end

local function for_product(defaults) return {defaults = defaults, schedules = {"cooperative"}, boxed = true} end

-- By kind of kernel. defaults: its choice; schedules: those that it can run, if not all; boxed: its second operand is
-- MN-major, which a CTA loads in whole boxes of columns
local KINDS = {
  forward = {defaults = for_scores}, dz = {defaults = for_scores}, dz_lora = {defaults = for_scores},
  products = for_product(for_products),
  lora_products = for_product(for_adapter),
}

--------------------------------------------------------------------------------------------------- what can be built
local function check_values(T, kind, wide)
  local cooperative = T.schedule == "cooperative"
  L.among(T, "schedule", wide and {"cooperative"} or kind.schedules or {"ping-pong", "cooperative"})
  L.among(T, "columns", wide and {64, 128} or {64, 128, 192, 256})
  L.among(T, "cluster", {1, 2, 4})
  -- 64 rows are the height of one wgmma, and a box of a tensor map has 256 rows at most
  L.among(T, "rows", wide and {128} or cooperative and {128, 256} or {64, 128, 192, 256})
  L.within(T, "raster", 1, C.RASTER_MOST)
  L.within(T, "stages", 2, 12)
end

local function check_resources(T, kind, wide, spec)
  local accumulators = T.rows * T.columns // (T.schedule == "cooperative" and 256 or 128)
  local most = wide and ACCUMULATORS_WIDE or ACCUMULATORS
  if accumulators > most then
    L.refuse("%dx%d %s needs %d accumulators a thread; at most %d fit", T.rows, T.columns, T.schedule, accumulators,
      most)
  end
  L.check_shared(T, spec)
  local part, box = T.columns // T.cluster, wide and 32 or 64
  if kind.boxed and part % box > 0 then
    L.refuse("each CTA would load %d columns; boxes have %d", part, box)
  end
end

-- The configuration of the kernel: what the key asks for, else the default. Raises why it cannot be built.
local function choose(spec)
  local kind, wide, T = KINDS[spec.kind] or KINDS.forward, spec.dtype == "fp32", {}
  for name, defaults in pairs(kind.defaults(spec)) do T[name] = spec.tune[name] or defaults end
  check_values(T, kind, wide)
  T.width, T.warps = T.columns, 8
  T.staging, T.aside = C.staging(spec, T), spec.parts.columns and not wide -- aside: work for idle warps
  T.planes = wide and T.stages - 1 or 0 -- stages of the second ring: of three terms of B, 64 bytes a column each
  T.shared_bytes = T.stages * (T.rows + T.columns) * 128 + T.planes * (T.columns * 192) + 8 * T.staging
    + (T.stages + T.planes) * 16 + 24
  check_resources(T, kind, wide, spec)
  return T
end

-- What a search goes over, each ascending: values that are worth a look, not all that can be built. Beside them it takes
-- the kernel's default.
local axes = {
  schedule = {"ping-pong", "cooperative"}, rows = {64, 128, 192, 256}, columns = {64, 128, 192, 256},
  stages = {3, 4, 5, 6, 7, 8}, cluster = {1, 2, 4}, raster = {4, 8, 16, 32, 64},
}

return {choose = choose, axes = axes}
