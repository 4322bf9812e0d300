-- expect: portable/forward.lua:3: k.abi is read-only: 'LEAF_COLUMNS' cannot be set
return function(k, spec)
  k.abi.LEAF_COLUMNS = 512
end
