-- grad_weight.lua: the gradient of weight from dz; the product is described in product.lua.

return function(k, spec)
  k.import "product" (k, spec, "grad_weight")
end
