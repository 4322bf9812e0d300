-- expect: endless.lua:2: the template ran 200000000 steps without an end
return function(row) while true do end end
