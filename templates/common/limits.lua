-- limits.lua: what every tune.lua refuses in one way: values of a tile configuration that are not accepted.

local L = {}

function L.refuse(format, ...) error(("tune: " .. format):format(...), 0) end

function L.among(T, name, values)
  for _, value in ipairs(values) do
    if T[name] == value then return end
  end
  L.refuse("%s %s is not accepted; one of %s is", name, T[name], table.concat(values, ", "))
end

function L.within(T, name, least, most)
  if T[name] < least or T[name] > most then
    L.refuse("%s %d is not accepted; %d to %d is", name, T[name], least, most)
  end
end

function L.check_shared(T, spec)
  if T.shared_bytes > spec.shared_bytes then
    L.refuse("%d stages of %dx%d need %d bytes of shared memory; %s has %d", T.stages, T.rows, T.columns,
      T.shared_bytes, spec.arch, spec.shared_bytes)
  end
end

return L
