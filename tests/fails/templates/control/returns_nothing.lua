-- expect: portable/forward.lua:1: the file returns nothing
local x = 1
