-- tune.lua: how a kernel of sm_90a is cut: what the key asks for, and where it leaves a choice, the kernel's own.
--
--   schedule         "ping-pong" or "cooperative", see engine.lua
--   rows, columns    of a tile: what a CTA, or in ping-pong one of its two warpgroups, multiplies at a time
--   stages           of the ring from memory; fp32 operands have a second ring, one stage shorter (terms.lua)
--   cluster          CTAs along the rows that share the tiles of the second operand
--   raster           how many bands of rows may walk along the columns together, for what they share in L2

local SHARED_BYTES = 232448   -- of a CTA
-- Of a thread that multiplies. It has 240 registers, and with fp32 operands 208, of which a k16 takes up to 64 beside
-- them.
local ACCUMULATORS, ACCUMULATORS_WIDE = 192, 96

-- Bytes of L2 for the hidden rows of a sweep: with more than a good half of it they do not stay there.
local PANEL_BYTES = 24 << 20

-- Of bands of that many rows; where D is not known, as with 4096 columns.
local function panel(spec, band)
  local depth, bytes = spec.hidden > 0 and spec.hidden or 4096, spec.dtype == "fp32" and 4 or 2
  return math.max(1, math.min(64, PANEL_BYTES // (band * depth * bytes)))
end

-- own: what the kernel chooses; without a raster, the bands of its own tile whose hidden rows stay in L2.
return function(spec, own)
  local tune, T = spec.tune, {}
  local wide = spec.dtype == "fp32"
  for _, name in ipairs {"schedule", "rows", "columns", "stages", "cluster", "raster"} do
    T[name] = tune[name] or own[name]
  end
  T.raster = T.raster or panel(spec, own.rows * own.cluster)
  T.staging = own.staging

  local function refuse(name, accepted)
    error(("tune: %s %s is not accepted; %s"):format(name, T[name], accepted), 0)
  end
  local function among(name, values)
    for _, value in ipairs(values) do
      if T[name] == value then return end
    end
    refuse(name, "one of " .. table.concat(values, ", ") .. " is")
  end

  among("schedule", wide and {"cooperative"} or own.schedules or {"ping-pong", "cooperative"})
  among("columns", own.widths or {64, 128, 192, 256})
  among("cluster", {1, 2, 4})
  -- 64 rows are the height of one wgmma, and a box of a tensor map has 256 rows at most
  among("rows", wide and {128} or T.schedule == "cooperative" and {128, 256} or {64, 128, 192, 256})
  if T.raster > 64 then refuse("raster", "1 to 64 is") end
  if T.stages < 2 or T.stages > 12 then refuse("stages", "2 to 12 is") end

  local accumulators = T.rows * T.columns // (T.schedule == "cooperative" and 256 or 128)
  local most = wide and ACCUMULATORS_WIDE or ACCUMULATORS
  if accumulators > most then
    error(("tune: %dx%d %s needs %d accumulators a thread; at most %d fit"):format(
      T.rows, T.columns, T.schedule, accumulators, most), 0)
  end
  T.planes = wide and T.stages - 1 or 0 -- stages of the second ring: of three terms of B, 64 bytes a column each
  local bytes = T.stages * (T.rows + T.columns) * 128 + T.planes * (T.columns * 192) + 8 * (T.staging or 0)
    + (T.stages + T.planes) * 16 + 24
  if bytes > SHARED_BYTES then
    error(("tune: %d stages of %dx%d need %d bytes of shared memory; there are %d"):format(
      T.stages, T.rows, T.columns, bytes, SHARED_BYTES), 0)
  end
  return T
end
