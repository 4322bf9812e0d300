/* options.c: the fields of a table of options, read with errors that name word and field. */
#include "gen/target/options.h"

#include <string.h>

#include "gen/lang/order.h"
#include "gen/lang/value.h"

void gen_options_open(lua_State *L, const char *word, const char *const *known) {
  if (!lua_istable(L, 1)) gen_fail(L, "%s: expected a table, got %s", word, gen_describe(L, 1));
  lua_settop(L, 1);
  gen_order_refuse_unknown(L, 1, known, word);
}

int gen_options_integer(lua_State *L, const char *word, const char *field, int low, int high) {
  const char *what = lua_pushfstring(L, "%s: %s", word, field);
  lua_getfield(L, 1, field);
  int result = (int)gen_value_integer(L, -1, low, high, what);
  lua_pop(L, 2);
  return result;
}

int gen_options_columns(lua_State *L, const char *word) {
  int columns = gen_options_integer(L, word, "columns", 8, 256);
  if (columns % 8) gen_fail(L, "%s: columns: %d is no multiple of 8", word, columns);
  return columns;
}

int gen_options_is_mn_major(lua_State *L, const char *word, const char *field) {
  lua_getfield(L, 1, field);
  const char *major = gen_word(L, -1);
  int is_mn = strcmp(major, "mn") == 0;
  if (!is_mn && strcmp(major, "k") != 0)
    gen_fail(L, "%s: %s: expected \"k\" or \"mn\", got %s", word, field, gen_describe(L, -1));
  lua_pop(L, 1);
  return is_mn;
}

void gen_options_add_text(lua_State *L, luaL_Buffer *buffer, const char *format, int number) {
  lua_pushfstring(L, format, number);
  luaL_addvalue(buffer);
}
