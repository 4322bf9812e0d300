-- expect: import_missing.lua:2: import: there is no built-in loss 'gppo'
local loss = import "gppo"
return loss
