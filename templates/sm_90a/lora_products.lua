-- lora_products.lua (sm_90a): G = dz·B and dB = dzᵀ·u of a head with a low-rank adapter, in one launch: the products of
-- product.lua with B in the place of weight and u in that of hidden. D is the adapter's rank, so tiles are narrow.

return function(k, spec)
  k.import "product" (k, spec, "lora_products_map")
end
