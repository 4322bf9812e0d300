-- parts.lua: the parts of a forward kernel, each a table of hooks of online.lua, as one: hooks of one name run in this
-- order. What an adapter adds is in the operands (head.lua, engine.lua).

local FILES = {{"keep", "keep"}, {"emit", "emission"}, {"targets", "held"}, {"top", "contenders"}, {"columns", "ahead"},
               {"statistics", "moments"}, {"raw", "raw"}}

local function both(first, second)
  if first == nil or type(second) ~= "function" then return second end
  return function(...)
    first(...)
    return second(...)
  end
end

return function(k, spec, M)
  local K = {}
  for _, part in ipairs(FILES) do
    local hooks = spec.parts[part[1]] and k.import(part[2])(k, spec, M) or {}
    for name, hook in pairs(hooks) do K[name] = both(K[name], hook) end
  end
  return K
end
