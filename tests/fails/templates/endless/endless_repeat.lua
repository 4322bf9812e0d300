-- expect: portable/forward.lua:3: string.rep: 4611686018427387904 times are not accepted, up to 1048576 are
return function(k, spec)
  local s = (""):rep(1 << 62)
end
