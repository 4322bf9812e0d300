-- dz_lora.lua: dz of a head with a low-rank adapter; dz.lua describes it, head.lua has what it adds to a score.

return function(k, spec)
  k.import "dz" (k, spec, "dz_lora")
end
