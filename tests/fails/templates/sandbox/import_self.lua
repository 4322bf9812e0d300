-- expect: portable/forward.lua:2: k.import: 'forward' imports itself
local again = k.import "forward"
return function(k, spec) end
