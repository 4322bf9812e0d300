-- expect: import_type.lua:2: import: expected a name, got nothing
return import()
