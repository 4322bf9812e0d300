-- forward_lora.lua: forward of a head with a low-rank adapter; head.lua has what it adds to a score.

return function(k, spec)
  k.import "online" (k, spec, "forward_lora")
end
