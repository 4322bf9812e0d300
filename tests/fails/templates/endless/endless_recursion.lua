-- expect: portable/forward.lua:3: stack overflow
return function(k, spec)
  local function f() return 1 + f() end
  f()
end
