-- expect: portable/forward.lua:4: state.value: expected f32, got i32
return function(k, spec)
  k.kernel {entry = "forward", threads = 128, body = function(p)
    local x = k.branch(k.lt(k.tid(), 3),
      function() return {value = p.cap_in} end,
      function() return {value = p.depth} end)
  end}
end
