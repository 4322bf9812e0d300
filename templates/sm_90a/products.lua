-- products.lua (sm_90a): both gradients from dz, in one launch; the products are described in product.lua.

return function(k, spec)
  k.import "product" (k, spec)
end
