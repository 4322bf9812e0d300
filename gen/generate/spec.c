/* spec.c: the kernel's key as the table `spec`, and the constants of abi.h as `k.abi`. */
#include "gen/generate/spec.h"

#include <stddef.h>
#include <string.h>

#include "gen/lang/sandbox.h"
#include "gen/loss/push.h"

static void set_string(lua_State *L, const char *name, const char *value) {
  lua_pushstring(L, value);
  lua_setfield(L, -2, name);
}

const gen_tunable gen_tunables[GEN_TUNABLES] = {
    {"schedule", offsetof(flp_tunables, schedule)}, {"rows", offsetof(flp_tunables, rows)},
    {"columns", offsetof(flp_tunables, columns)},   {"stages", offsetof(flp_tunables, stages)},
    {"cluster", offsetof(flp_tunables, cluster)},   {"raster", offsetof(flp_tunables, raster)},
};

const char *const gen_schedules[GEN_SCHEDULES] = {
    NULL, [FLP_SCHEDULE_PING_PONG] = "ping-pong", [FLP_SCHEDULE_COOPERATIVE] = "cooperative"};

/* A table with false for each choice that is left to the template. */
static void push_tune(lua_State *L, const flp_tunables *tune) {
  lua_newtable(L);
  for (int i = 0; i < GEN_TUNABLES; i++) {
    uint32_t value;
    memcpy(&value, (const char *)tune + gen_tunables[i].offset, sizeof value);
    if (!value)
      lua_pushboolean(L, 0);
    else if (i == 0)
      lua_pushstring(L, gen_schedules[value]);
    else
      lua_pushinteger(L, (lua_Integer)value);
    lua_setfield(L, -2, gen_tunables[i].name);
  }
  gen_sandbox_freeze(L, "spec.tune", "field");
}

/* false for a module that computes no loss */
static void push_loss(lua_State *L, const flp_kernel_key *key) {
  const flp_loss *loss = gen_state_get(L)->loss;
  if (loss)
    gen_loss_push(L, loss);
  else if (key->kind == FLP_KERNEL_LOSS || key->kind == FLP_KERNEL_LOSS_SCORES)
    gen_loss_push_operations(L, key->kind == FLP_KERNEL_LOSS_SCORES);
  else
    lua_pushboolean(L, 0);
}

/* Of forward: true for each that the kernel has. */
static void push_parts(lua_State *L, unsigned parts) {
#define NAME(ID, name) #name,
  static const char *const names[] = {FLP_FORWARD_PARTS(NAME)};
#undef NAME
  lua_newtable(L);
  for (int bit = 0; bit < FLP_PART_BITS; bit++) {
    lua_pushboolean(L, parts >> bit & 1);
    lua_setfield(L, -2, names[bit]);
  }
  gen_sandbox_freeze(L, "spec.parts", "part");
}

void gen_spec_push(lua_State *L) {
  const flp_kernel_key *key = gen_state_get(L)->key;
  const struct {
    const char *name;
    uint32_t value;
  } flags[] = {
      {"entropy", key->entropy}, {"bias", key->bias}, {"bias_grad", key->bias_grad}, {"softcap", key->softcap},
      {"lora", key->lora}, {"wide_weight", key->weight_form & FLP_KEY_WIDE},
      {"two_terms", key->weight_form & FLP_KEY_TERMS}};
  lua_newtable(L);
  set_string(L, "kind", flp_kernel_kind_name(key->kind));
  set_string(L, "arch", key->arch);
  set_string(L, "dtype", flp_dtype_name(key->dtype));
  set_string(L, "target_dtype", flp_dtype_name(key->target_dtype));
  set_string(L, "out_dtype", flp_dtype_name(key->out_dtype));
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    lua_pushboolean(L, flags[i].value != 0);
    lua_setfield(L, -2, flags[i].name);
  }
  push_parts(L, flp_kind_parts(key->kind));
  lua_setfield(L, -2, "parts");
  lua_pushinteger(L, flp_arch_find(key->arch)->shared_bytes);
  lua_setfield(L, -2, "shared_bytes");
  lua_pushinteger(L, (lua_Integer)key->alignment);
  lua_setfield(L, -2, "alignment");
  lua_pushinteger(L, key->hidden);
  lua_setfield(L, -2, "hidden");
  lua_pushinteger(L, key->vocab);
  lua_setfield(L, -2, "vocab");
  push_tune(L, &key->tune);
  lua_setfield(L, -2, "tune");
  push_loss(L, key);
  lua_setfield(L, -2, "loss");
  gen_sandbox_freeze(L, "spec", "field");
}

void gen_spec_push_abi(lua_State *L) {
#define CONSTANT(name, value) {#name, FLP_##name},
  static const struct {
    const char *name;
    int value;
  } constants[] = {FLP_ABI_CONSTANT_LIST(CONSTANT)};
#undef CONSTANT
  lua_newtable(L);
  for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
    lua_pushinteger(L, constants[i].value);
    lua_setfield(L, -2, constants[i].name);
  }
  gen_sandbox_freeze(L, "k.abi", "constant");
}
