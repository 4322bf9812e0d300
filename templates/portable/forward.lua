-- forward.lua: the maximum and sums of each row's exponentials, as online.lua describes, and beside them what the parts
-- of the kernel make.

return function(k, spec)
  k.import "online" (k, spec, spec.kind, function(M) return k.import "parts" (k, spec, M) end)
end
