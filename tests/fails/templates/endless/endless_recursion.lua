-- expect: portable/forward.lua:3: stack overflow: calls nest deeper than 1000
return function(k, spec)
  local function f() return 1 + f() end
  f()
end
