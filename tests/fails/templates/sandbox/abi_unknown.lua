-- expect: portable/forward.lua:3: k.abi has no constant 'LEAF_ROWS'
return function(k, spec)
  local rows = k.abi.LEAF_ROWS
end
