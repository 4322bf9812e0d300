-- expect: endless_match.lua:3: string has no function 'match'
return function(row)
  local s = ("a"):rep(40):match(("a-"):rep(40) .. "b")
  return row.logprob
end
