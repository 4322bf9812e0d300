-- grad_hidden.lua: the gradient of hidden from dz; the product is described in product.lua.

return function(k, spec)
  k.import "product" (k, spec, "grad_hidden")
end
