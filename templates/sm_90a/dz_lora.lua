-- dz_lora.lua (sm_90a): dz of a head with a low-rank adapter; dz.lua describes it, engine.lua has what it adds to a score.

return function(k, spec)
  k.import "dz" (k, spec, "dz_lora_map")
end
