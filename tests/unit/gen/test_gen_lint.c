/* test_gen_lint.c: the lint stays silent on Lua that only looks like its faults, which tests/fails holds. */
#include "tests/unit/support/gen_case.h"

/* Each is a body that must generate. x: a value; t: nil, a table or a number. */
static const char *const innocent[] = {
    "local bias = spec.bias and p.cap_in\nif bias then local y = bias * 2 end",
    "local x = spec.bias and k.tid() or nil\nif x then k.barrier() end",
    "local x = k.tid()\nx = nil\nif not x then k.barrier() end",
    "local x, y = k.tid()\nif not y then k.barrier() end",
    "local x = k.tid()\nif x.type == k.i32 then k.barrier() end",
    "local x = k.tid()\nif x.type then k.barrier() end",
    "local x = k.tid()\nlocal t = {x = 1}\nif t.x == 1 then k.barrier() end",
    "local x = k.tid()\nlocal function f(x) if x then k.barrier() end end\nf(nil)",
    "local x = k.tid()\ndo local x = 3\nif x == 3 then k.barrier() end end",
    "local x = k.tid()\nfor x = 1, 3 do if x == 2 then k.barrier() end end",
    "local x = k.tid()\nif x ~= nil then k.barrier() end",
    "do local x = k.tid() end\nlocal x = spec.hidden\nif x == 4096 then k.barrier() end",
    "local x = k.ldmatrix(k.shared())[1].type\nif x then k.barrier() end",
    "local t = k.load_vector(k.f32, 2, p.zy, 0)\nif t[3] then k.barrier() end\nif #t == 2 then k.barrier() end",
    "-- if k.lt(k.tid(), 3) then\nlocal s = 'if k.lt(1, 2) then' .. [[ not k.tid() ]]\nk.barrier()",
    "--[==[ while k.tid() do ]==]\nlocal n = 0x1p4\nif n == 16 then k.barrier() end",
    "local found = false\nif not found then k.barrier() end\nrepeat found = not found until found",
    "local x = k.tid()\nlocal t = {k.lt(x, 3) and 1 or 0}\nif t[1] == 1 then k.barrier() end",
    "local x = k.tid()\nlocal same = x.type == k.i32 and 0 == 0",
    "if spec.dtype == 'bf16' then k.barrier() elseif spec.dtype == 'fp16' then k.copy_commit() else k.copy_wait(0) end",
};

Test(gen_lint, ordinary_lua_passes) {
  for (size_t i = 0; i < sizeof innocent / sizeof innocent[0]; i++) {
    flpgen_result result;
    char error[512];
    cr_expect_eq(gen_case_body(innocent[i], &result, error), FLP_OK, "%s\n%s", innocent[i], error);
    flpgen_result_clear(&result);
  }
}

/* Faults at places where scopes, comments and long strings could mislead. */
static const struct {
  const char *body;
  int line; /* in the file: the body begins at line 3 */
} faulty[] = {
    {"local x = k.tid()\ndo local x = 1 end\nif x then k.barrier() end", 5},
    {"local x = k.tid()\nlocal function f(x) return x end\nif x then k.barrier() end", 5},
    {"local s = [[\n\n]]\nif k.lt(k.tid(), 3) then k.barrier() end", 6},
    {"--[[\n]] if k.lt(k.tid(), 3) then k.barrier() end", 4},
    {"for i = 1, 2 do\nlocal x = k.convert(k.i64, k.tid())\nif i == 1 then\nelseif x then k.barrier() end\nend", 6},
    {"local x <const> = 3\nlocal y = k.select(k.lt(k.tid(), 3), k.tid(), 0)\nlocal z = y ~= -1", 5},
    {"local f = function(a)\nlocal v = k.load(k.f32, p.zy, 0)\nreturn not v\nend", 5},
};

Test(gen_lint, faults_are_found_in_any_scope) {
  for (size_t i = 0; i < sizeof faulty / sizeof faulty[0]; i++) {
    flpgen_result result;
    char error[512], start[64];
    cr_expect_eq(gen_case_body(faulty[i].body, &result, error), FLP_ERROR_COMPILE, "%s", faulty[i].body);
    snprintf(start, sizeof start, "portable/forward.lua:%d: ", faulty[i].line);
    cr_expect_eq(strncmp(error, start, strlen(start)), 0, "%s\n%s", faulty[i].body, error);
    flpgen_result_clear(&result);
  }
}

/* A file may stop inside any construction. 1023 tokens and the end fill the list of tokens to its last place, so that
 * the sanitized build sees a step beyond it. */
Test(gen_lint, a_file_may_stop_anywhere) {
  static const char *const ends[] = {
      "function", "function f", "function f .", "function f (", "local", "local function", "local x =", "for",
      "for x ,",  "x ,",        "not",          "if",           "while", "until",          "row .",     "row",
      "k .",      "k . lt (",   "x ==",         "x == -",       "abs (", "x . y :",        "return",    "function x x"};
  enum { TOKENS = 1023, MARGIN = 8 };
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
    for (int n = TOKENS - MARGIN; n <= TOKENS; n++) {
      char text[4 * TOKENS] = "", error[512];
      for (int j = 0; j < n; j++) strcpy(text + 2 * j, "x ");
      strcat(text, ends[i]);
      flpgen_result result;
      static flpgen_loss loss;
      cr_expect_eq(gen_case_text(text, strlen(text), &result, error), FLP_ERROR_COMPILE, "%s", ends[i]);
      cr_expect_eq(flpgen_loss_trace("x.lua", text, strlen(text), &loss, error, sizeof error), FLP_ERROR_COMPILE);
      cr_expect_str_eq(error, "x.lua:1: syntax error near 'x'");
    }
  }
  char text[4 * TOKENS] = "function ";
  for (int j = 0; j < TOKENS - 1; j++) strcat(text, "x ");
  static flpgen_loss loss;
  char error[512];
  cr_expect_eq(flpgen_loss_trace("x.lua", text, strlen(text), &loss, error, sizeof error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "x.lua:1: '(' expected near 'x'");
}
