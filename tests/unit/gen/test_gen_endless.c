/* test_gen_endless.c: files that would run, or grow, without an end: each ends soon, with a message that says why.
 *
 * Losses, which are traced in the process of a trainer. Steps, not the clock, end them: the same on every machine. What
 * only the clock ends is in test_gen_seconds.c. */
#include "tests/unit/support/gen_case.h"

#define FULL "the loss needs more memory than it may have: 64 MiB, 256 KiB in a table, 16 KiB in a string"

/* Bodies of function(row), in front of `return row.logprob`. */
static const char *const steps[] = {
    "while true do end",
    "repeat until false",
    "for i = 1, math.huge do end",
    "for i = 1, math.maxinteger do end",
    "::again:: goto again",
    "local function f() return f() end f()",
    "local function f(n) if n > 0 then f(n - 1) f(n - 1) end end f(200)",
    "local t = {} while true do t = {t} end",
    "while true do local t = {} end",
    "while true do local f = function() return row end end",
    "local s = string.rep('', 1 << 62)",
    "while true do local s = string.rep('', 1 << 20) end",
    "local s = ('x'):rep(1 << 40)",
    "while true do local s = ('x'):rep(16000) end",
    "local s = 'x' while true do s = s .. 'x' end",
    "local s = ('x'):rep(16000) while true do local t = s .. 'y' end",
    "local a, b = ('x'):rep(16000) .. 'a', ('x'):rep(16000) .. 'b' while true do local c = a < b end",
    "local a, b = ('x'):rep(16000) .. 'a', ('x'):rep(16000) .. 'b' while true do local c = a == b end",
    "local a, t = ('x'):rep(16000), {} t[a .. 'a'] = 1 local b = a .. 'b' while true do local c = t[b] end",
    "local s = ('9'):rep(16000) while true do tonumber(s) end",
    "local s = ('z'):rep(16000) while true do tonumber(s, 36) end",
    "local s = ('9'):rep(16000) while true do math.floor(s) end",
    "local s = ('0'):rep(16000) while true do math.max(s, s, s, s, s, s) end",
    "local s = ('x'):rep(16000) while true do s:upper() end",
    "local s = ('x'):rep(16000) while true do s:reverse() end",
    "local s = ('x'):rep(16000) while true do s:sub(2) end",
    "local s = ('x'):rep(200) while true do s:byte(1, -1) end",
    "local s = ('x'):rep(16000) while true do ('%.0s'):format(s) end",
    "while true do ('%99.99f'):format(1e308) end",
    "local s = ('%'):rep(16000) while true do s:format() end",
    "while true do local s = 1 .. '' end",
    "while true do tostring(1.5) end",
    "while true do tostring(row.logprob) end",
    "while true do string.char(1, 2, 3) end",
    "while true do local n = #('x'):rep(300) end",
    "table.move({}, 1, 1 << 62, 2)",
    "while true do table.move({}, 1, 1 << 16, 2) end",
    "table.move({}, -(1 << 62), 1 << 62, 1)",
    "table.concat({}, 'x', 1, 1 << 62)",
    "table.concat({'a'}, ('x'):rep(9999), -(1 << 62), 1)",
    "table.unpack({}, 1, 1 << 62)",
    "table.unpack({}, -1e9, -1)",
    "while true do table.unpack({}, 1, 256) end",
    "local function f(...) while true do select('#', ...) end end f(table.unpack({}, 1, 250))",
    "local function f(...) while true do local t = {...} end end f(table.unpack({}, 1, 250))",
    "local function g() end local function f(...) if select('#', ...) < 5000 then return f(1, 2, 3, 4, 5, 6, 7, 8, "
    "9, 10, ...) end while true do g(...) end end f()",
    "while true do table.pack(1, 2, 3) end",
    "while true do ipairs({}) end",
    "local t, s = {}, ('x'):rep(16000) for i = 1, 1e9 do t[i] = s .. i end",
    "local t = {} for i = 1, 3900 do t[i] = ('x'):rep(16000) .. i end while true do local s = ('y'):rep(16000) end",
    "while true do local x = abs(row.logprob) end",
    "while true do import 'ppo' end",
    "while true do local x = row.logprob ^ 8 end",
    "while true do local x = where(lt(row.logprob, -1), 1, 2) end",
    "do return row.logprob, (function() while true do end end)() end",
    "while true do type(1) end",
    "table.sort({3, 2, 1}, function(a, b) while true do end end)",
    "while true do string.format('%s%s', 'x', ('y'):rep(9000)) end",
    "string.rep('x', math.maxinteger, 'y')",
    "while true do ('x'):rep(-1) end",
    "while true do math.fmod(1e308, 3) end",
    "while true do local s = string.format('%q', 1 / 3) end",
    "while true do ('%a'):format(1e-320) end",
    "while true do local x = 1 // 1 % 7 end",
    "while true do ('x'):byte(-(1 << 62), 1 << 62) end",
};

static const char *const memory[] = {
    "local t = {} while true do t[#t + 1] = 1 end",
    "local t = {} for i = 1, 1e9 do t[i * 65535] = 1 end",
    "local t = {} for i = 1, 1e9 do t[i + 0.5] = i end",
    "local t = {} for i = 1, 60000 do t[i] = i end for i = 1, 60000 do t[i] = nil end while true do pairs(t) end",
    "local t = {} for i = 1, 40000 do t['k' .. i] = i end while true do for k in pairs(t) do end end",
    "local s = ('x'):rep(1 << 20)",
    "local s = ('ab'):rep(10, ('x'):rep(1 << 13))",
    "local s = 'x' while true do s = s .. s end",
    "local s = ('a'):rep(30000):find(('.-'):rep(12) .. 'b')",
    "local t = {} for i = 1, 60000 do t[i] = 'x' end while true do table.concat(t) end",
    "local t = {} for i = 1, 9000 do t[i] = ('x'):rep(9) end while true do table.concat(t, ('y'):rep(9000)) end",
    "local function f(...) return f(1, ...) end f()",
    "local t = {} for i = 1, 60000 do t[i] = i % 7 end while true do table.insert(t, 1, 0) table.remove(t, 1) end",
    "local t = {} for i = 1, 60000 do t[i] = -i end while true do table.sort(t) end",
    "local t = {} for i = 1, 60000 do t[i] = i end table.sort(t, function() while true do end end)",
    "local t = {} for i = 1, 60000 do t[i] = i end table.sort(t, function(a, b) return true end) while true do "
    "table.sort(t, function(a, b) return true end) end",
    "local t = {} for i = 1, 1e9 do t[i] = {} end",
};

static const struct {
  const char *body, *message;
} refused[] = {
    {"local function f() return 1 + f() end f()", "stack overflow: calls nest deeper than 1000"},
    {"local s = ('9'):rep(16000) while true do local x = s + 1 end",
     "attempt to perform arithmetic on a string value (local 's')"},
    {"local s = ('9'):rep(16000) while true do local x = -s end",
     "attempt to perform arithmetic on a string value (local 's')"},
    {"local s = ('9'):rep(16000) while true do local x = s | 1 end",
     "attempt to perform bitwise operation on a string value (local 's')"},
    {"local s = ('x'):rep(16000) while true do s:byte(1, -1) end",
     "16000 values at once are not accepted, up to 256 are"},
    {"local s = ('%99d'):rep(250) while true do s:format(table.unpack({1})) end",
     "bad argument #2 to 'format' (no value)"},
    {"('%100d'):format(1)", "invalid conversion specification: '%100d'"},
    {"('%1000000000d'):format(1)", "invalid conversion specification: '%1000000000d'"},
    {"('%.99999f'):format(1)", "invalid conversion specification: '%.99999f'"},
    {"('a'):rep(40):match(('a-'):rep(40) .. 'b')", "string has no function 'match'"},
    {"(('a'):rep(40)):gsub(('a?'):rep(40), 'b')", "string has no function 'gsub'"},
    {"for w in (('('):rep(9999)):gmatch('%b()') do end", "string has no function 'gmatch'"},
    {"('x'):rep(9):find('%f[%w]')", "string has no function 'find'"},
    {"string.pack('s', 'x')", "string has no function 'pack'"},
    {"string.packsize('d')", "string has no function 'packsize'"},
    {"table.move({}, math.mininteger, math.maxinteger, 1)", "bad argument #3 to 'move' (too many elements to move)"},
    {"local t = setmetatable({}, {__len = function() return 1 << 62 end}) table.insert(t, 1, 1)",
     "the sandbox has no global 'setmetatable'"},
    {"local t = setmetatable({}, {__len = function() return 1 << 62 end}) table.remove(t, 1)",
     "the sandbox has no global 'setmetatable'"},
    {"local t = setmetatable({}, {__index = function() return 'x' end}) table.concat(t, '', 1, 1 << 62)",
     "the sandbox has no global 'setmetatable'"},
    {"setmetatable({}, {__gc = function() while true do end end})", "the sandbox has no global 'setmetatable'"},
    {"local x <close> = {}", "variable 'x' got a non-closable value"},
    {"getmetatable('').__index = nil", "the sandbox has no global 'getmetatable'"},
    {"table.unpack({}, 1, 1e6)", "1000000 values at once are not accepted, up to 256 are"},
    {"local x = row.logprob while true do x = x + 1 end", "+: a loss may have at most 256 operations"},
    {"local x = 1 while true do x = exp(x) end", "exp: a loss may have at most 256 operations"},
    {"error({})", "the file raised a table instead of a message"},
    {"coroutine.wrap(function() while true do end end)()", "the sandbox has no global 'coroutine'"},
    {"load('while true do end')()", "the sandbox has no global 'load'"},
    {"pcall(function() while true do end end)", "the sandbox has no global 'pcall'"},
    {"utf8.char(1)", "the sandbox has no global 'utf8'"},
    {"os.exit()", "the sandbox has no global 'os'"},
    {"import('nothing')", "import: there is no built-in loss 'nothing'"},
    {"table.insert({}, 1 << 62, 1)", "bad argument #2 to 'insert' (position out of bounds)"},
    {"table.remove({}, 1 << 62)", "bad argument #1 to 'remove' (position out of bounds)"},
};

/* Traces the text; true if it fails with a message that ends so. */
static void expect_failure(const char *text, size_t length, const char *ending) {
  static flpgen_loss loss;
  char error[512] = "";
  cr_expect_eq(flpgen_loss_trace("x.lua", text, length, &loss, error, sizeof error), FLP_ERROR_COMPILE, "%.200s", text);
  size_t ends = strlen(ending), has = strlen(error);
  cr_expect(has > ends && strcmp(error + has - ends, ending) == 0, "%.200s\n  expected %s\n  got      %s", text, ending,
            error);
  cr_expect_eq(strncmp(error, "x.lua:", 6), 0, "%.200s: %s", text, error);
}

static void expect_body_fails(const char *body, const char *ending) {
  char text[1024];
  int n = snprintf(text, sizeof text, "return function(row)\n%s\nreturn row.logprob end", body);
  cr_assert(n > 0 && (size_t)n < sizeof text);
  expect_failure(text, (size_t)n, ending);
}

Test(gen_endless, what_runs_on_is_stopped_by_its_steps, .timeout = 900) {
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
    expect_body_fails(steps[i], ": the loss ran 2000000 steps without an end");
}

Test(gen_endless, what_grows_is_stopped_by_its_memory, .timeout = 900) {
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) expect_body_fails(memory[i], ": " FULL);
}

Test(gen_endless, what_could_run_on_is_refused, .timeout = 900) {
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    char ending[256];
    snprintf(ending, sizeof ending, ": %s", refused[i].message);
    expect_body_fails(refused[i].body, ending);
  }
}

/* ---- text that Lua's parser and the lint read without counting ---- */

enum { FILE_BYTES = 64 << 10 }; /* that are accepted */

/* A head, units up to the length of a file, with %d their number, and a tail. */
static const struct {
  const char *head, *unit, *tail, *message; /* NULL: it passes */
} files[] = {
    {"return function(row) local a local x = a", " or a", " return row.logprob end", NULL},
    {"return function(row) local a local x = a", " and a", " return row.logprob end", NULL},
    {"return function(row) local a if a then ", "elseif a then ", "end return row.logprob end", NULL},
    {"return function(row) do ", "goto l ", "end ::l:: return row.logprob end", FULL},
    {"return function(row) ", "do local a%d=row.weight end ", "return row.logprob end", NULL},
    {"return function(row) local x = abs(1)", " or row.weight==1", " return row.logprob end", NULL},
    {"return function(row) local t = {", "a%d=1,", "} return row.logprob end", FULL},
    {"return function(row) local t = {", "1,", "} return row.logprob end", FULL},
    {"return function(row) ", "::l%d::", " return row.logprob end", "C stack overflow: it nests too deeply"},
    {"return function(row) local x = ", "not ", "1 return row.logprob end", "C stack overflow: it nests too deeply"},
    {"return function(row) local x = ", "- ", "1 return row.logprob end", "C stack overflow: it nests too deeply"},
    {"return function(row) local x = ", "(", "", "C stack overflow: it nests too deeply"},
    {"return function(row) local x = ", "{", "", "C stack overflow: it nests too deeply"},
    {"return function(row) local x = ", "abs(", "", "C stack overflow: it nests too deeply"},
    {"return function(row) ", "repeat ", "", "C stack overflow: it nests too deeply"},
    {"return function(row) local s = ''", "..'a'", " return row.logprob end", "C stack overflow: it nests too deeply"},
    {"return function(row) ", "local a%d=abs(1) ", "return row.logprob end",
     "too many local variables (limit is 200) in function at line 1 near '='"},
    {"x", ",x", "=1", "C stack overflow: it nests too deeply"},
    {"for a", ",a", "", "too many local variables (limit is 200) in main function near ','"},
    {"function ", "x ", "", "'(' expected near 'x'"},
    {"function x", ".x", "", "'(' expected near <eof>"},
    {"", "function ", "", "<name> expected near 'function'"},
    {"", "x", "=1", FULL},
    {"x='", "a", "'", FULL},
    {"x=[=[", "]", "", "unfinished long string (starting at line 1) near <eof>"},
    {"--[[", "[", "", "unfinished long comment (starting at line 1) near <eof>"},
    {"", "\"\\", "", "unfinished string near <eof>"},
    {"x=1e", "9", "", "the sandbox is read-only: 'x' cannot be set"},
};

Test(gen_endless, a_long_file_is_read_in_time, .timeout = 900) {
  static char text[FILE_BYTES + 256];
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    size_t length = (size_t)sprintf(text, "%s", files[i].head), room = FILE_BYTES - strlen(files[i].tail) - 32;
    for (int n = 0; length < room; n++) length += (size_t)sprintf(text + length, files[i].unit, n);
    length += (size_t)sprintf(text + length, "%s", files[i].tail);
    cr_assert_leq(length, FILE_BYTES);
    static flpgen_loss loss;
    char error[512] = "";
    if (files[i].message)
      expect_failure(text, length, files[i].message);
    else
      cr_expect_eq(flpgen_loss_trace("x.lua", text, length, &loss, error, sizeof error), FLP_OK, "%.60s: %s", text,
                   error);
  }
  memset(text, '-', FILE_BYTES + 1);
  expect_failure(text, FILE_BYTES + 1, "the file has 65537 bytes; up to 65536 are accepted");
}
