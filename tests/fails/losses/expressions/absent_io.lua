-- expect: absent_io.lua:2: the sandbox has no global 'io'
io.open("/etc/passwd")
return function(row) return row.logprob end
