/* push.h: loss programs as what templates read. */
#ifndef FLPGEN_PUSH_H
#define FLPGEN_PUSH_H

#include <lua.h>
#include <stdbool.h>

#include "runtime/loss/loss.h"

/* Pushes a loss program as the table that templates/common/loss.lua reads. */
void gen_loss_push(lua_State *L, const flp_loss *loss);
/* Pushes what templates/common/loss_any.lua has to know of the operations of programs; of_scores: of those that read values
 * of all scores of a row. */
void gen_loss_push_operations(lua_State *L, bool of_scores);

#endif
