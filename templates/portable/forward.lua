-- forward.lua: the maximum and sums of each row's exponentials; how, online.lua describes.

return function(k, spec)
  k.import "online" (k, spec, "forward")
end
