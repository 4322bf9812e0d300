-- tune.lua: tile configurations of sm_100f's kernels: what a kernel chooses by itself, what can be built, and what it
-- takes. No such GPU has run them: what is chosen is what is read least, not what was measured.
--
--   schedule         "cooperative": the warps of the epilogue share a tile, see engine.lua
--   rows, columns    of a tile of a CTA. Rows are the 128 lanes of tensor memory, whose 512 columns two tiles share
--   stages           of the ring from memory
--   cluster          CTAs along the rows that share the tiles of the second operand: 2 multiply as one, as a pair
--   raster           raster width: the most row panels that go over the columns together, for what they share in L2

local C, L = k.import "choice", k.import "limits"

local TENSOR_COLUMNS, SLOTS = 512, 2
local WIDTH, WARPS = 64, 4                        -- of the epilogue: columns at a time, a block of sums; its warps

------------------------------------------------------------------------------------------------ what kernels choose
local function tile(columns, stages, cluster, raster)
  return {schedule = "cooperative", rows = 128, columns = columns, stages = stages, cluster = cluster, raster = raster}
end

-- Few rows: a head is read for them and little is multiplied. Two CTAs share what they read, and each multiplies by
-- itself.
local function for_scores(spec)
  if spec.parts.short then return tile(128, 7, 2, 1) end
  return tile(256, 6, 2, C.raster(spec, 128 * 2))
end

-- For C.tile_of; loss: by what a tile reads.
local TILES = {
  {columns = 256, stages = 6, cluster = 2, loss = 1},
  {columns = 128, stages = 8, cluster = 2, loss = 1.05},
  {columns = 192, stages = 5, cluster = 1, loss = 1.1},
}

local function for_products(spec)
  local best = C.tile_of(TILES, spec.hidden)
  return tile(best.columns, best.stages, best.cluster, 8)
end

-- Of products that have an adapter's rank in the place of D: as on sm_90a.
local function for_adapter(spec)
  if spec.hidden > 128 then return for_products(spec) end
  return spec.hidden <= 64 and tile(64, 9, 1, 8) or tile(128, 7, 1, 8)
end

-- By kind of kernel, of forward with any parts for_scores. boxed: its second operand is MN-major, which a CTA loads in
-- whole boxes of columns
local DEFAULTS = {dz = for_scores, dz_lora = for_scores, products = for_products, lora_products = for_adapter}
local BOXED = {products = true, lora_products = true}

--------------------------------------------------------------------------------------------------- what can be built
local function check_values(T, spec)
  if spec.dtype == "fp32" then L.refuse("dtype fp32 has no kernels of sm_100f; bf16 and fp16 have") end
  L.among(T, "schedule", {"cooperative"})
  L.among(T, "rows", {128})
  L.among(T, "columns", {64, 128, 192, 256})
  L.among(T, "cluster", {1, 2, 4})
  L.within(T, "raster", 1, C.RASTER_MOST)
  L.within(T, "stages", 2, 12)
end

local function check_resources(T, spec)
  if SLOTS * T.columns > TENSOR_COLUMNS then
    L.refuse("%d tiles of %d columns need more than the %d of tensor memory", SLOTS, T.columns, TENSOR_COLUMNS)
  end
  L.check_shared(T, spec)
  if BOXED[spec.kind] and T.columns // T.cluster % WIDTH > 0 then
    L.refuse("each CTA would load %d columns; boxes have %d", T.columns // T.cluster, WIDTH)
  end
end

-- The configuration of the kernel: what the key asks for, else the default. Raises why it cannot be built.
local function choose(spec)
  local T = {}
  for name, default in pairs((DEFAULTS[spec.kind] or for_scores)(spec)) do T[name] = spec.tune[name] or default end
  check_values(T, spec)
  T.pair, T.width, T.warps = T.cluster == 2 and not spec.parts.short, WIDTH, WARPS
  T.staging, T.aside = C.staging(spec, T), spec.parts.columns -- aside: there is work for an idle warp
  T.shared_bytes = T.stages * (T.rows + T.columns // (T.pair and 2 or 1)) * 128 + WARPS * T.staging + T.stages * 16
    + SLOTS * 16 + 32
  check_resources(T, spec)
  return T
end

-- What a search goes over, each ascending: values that are worth a look, not all that can be built. Beside them it
-- takes the kernel's default.
local axes = {
  schedule = {"cooperative"}, rows = {128}, columns = {64, 128, 192, 256}, stages = {3, 4, 5, 6, 7, 8},
  cluster = {1, 2, 4}, raster = {4, 8, 16, 32, 64},
}

return {choose = choose, axes = axes}
