-- forward.lua: the maximum and sums of each row's exponentials, as online.lua describes, and what the kernel's parts make
-- beside them.

return function(k, spec)
  k.import "online" (k, spec, spec.kind, function(M) return k.import "parts" (k, spec, M) end)
end
