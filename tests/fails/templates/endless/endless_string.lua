-- expect: portable/forward.lua: the template needs more memory than it may have: 64 MiB, 256 KiB in a table, 16 KiB in a string
return function(k, spec)
  local s = "x"
  while true do s = s .. s end
end
