-- expect: portable/forward.lua:3: math has no function 'random'
return function(k, spec)
  local x = math.random()
end
