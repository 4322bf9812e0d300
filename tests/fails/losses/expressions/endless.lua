-- expect: endless.lua:2: the loss ran 2000000 steps without an end
return function(row) while true do end end
