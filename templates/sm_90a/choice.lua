-- choice.lua: what tune.lua chooses alike where operands come through tensor maps, on sm_90a and what is like it.

local staging = k.import "staging"
local C = {RASTER_MOST = 64}

-- Bytes of L2 for the hidden rows of a sweep: with more than a good half of it they do not stay there.
local PANEL_BYTES = 24 << 20
-- Of a warp: columns that wait in the queue of emission.lua.
local EMIT_BYTES = 2048

-- Row panels of that many rows whose hidden rows stay in L2; D = 4096 if it is unknown.
function C.raster(spec, panel_rows)
  local depth, bytes = spec.hidden > 0 and spec.hidden or 4096, spec.dtype == "fp32" and 4 or 2
  return math.max(1, math.min(C.RASTER_MOST, PANEL_BYTES // (panel_rows * depth * bytes)))
end

-- Of tiles in order of preference, the one that is the fastest for D's columns. A multiplication takes about as long
-- in each, so what counts is how many columns a last tile leaves unused: loss is what a tile takes longer where none
-- leaves any.
function C.tile_of(tiles, columns)
  local best, least
  for _, tile in ipairs(tiles) do
    local cost = (columns + tile.columns - 1) // tile.columns * tile.columns * tile.loss
    if not least or cost < least then best, least = tile, cost end
  end
  return best
end

local function of_forward(spec) return spec.parts.keep and staging.bytes or spec.parts.emit and EMIT_BYTES or 0 end
-- With a bias gradient a sum a column.
local function of_dz(spec, T) return staging.bytes + (spec.bias_grad and T.width * 4 or 0) end
-- One row: what added.lua adds to a tile.
local function of_products(spec, T) return spec.bias and spec.dtype ~= "fp32" and T.columns * 4 // T.warps or 0 end

local STAGING = {dz = of_dz, dz_lora = of_dz, products = of_products, lora_products = of_products}

-- Bytes of shared memory a consumer warp, for its results or as its share of what they have together. T.width: columns
-- that an epilogue has at a time; T.warps: the consumers
function C.staging(spec, T) return (STAGING[spec.kind] or of_forward)(spec, T) end

return C
