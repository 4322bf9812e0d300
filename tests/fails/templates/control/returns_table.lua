-- expect: portable/forward.lua:1: a template returns a function of k and spec, not table
return {}
