/* test_structs.c: structs of callers of another release: smaller ones, larger ones, and what is no struct at all. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/base/structs.h"
#include "tests/unit/support/refuse.h"

/* As many bytes as a newer release's struct may have, with an INIT value at their head. */
typedef union room {
  uint64_t words[512];
  flp_spec spec;
  flp_options options;
  flp_args args;
  flp_select_args select_args;
  flp_scale_args scale_args;
  flp_diverge_args diverge_args;
  flp_layout layout;
  flp_loss_description description;
  flp_arena_stats stats;
} room;

static const struct {
  const char *name, *type;
  flp_struct_id id;
  uint32_t bytes, first;
} kinds[] = {
#define KIND(id, type, name, INIT, first) {name, #type, FLP_STRUCT_##id, sizeof(type), first},
    FLP_STRUCTS(KIND)
#undef KIND
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static room fill(uint32_t bytes, unsigned char value) {
  room r;
  memset(&r, value, sizeof r);
  memcpy(&r, &bytes, sizeof bytes);
  return r;
}

Test(structs, this_release_is_read_as_it_is) {
  for (int i = 0; i < KINDS; i++) {
    room given = fill(kinds[i].bytes, 7), got = {{0}};
    cr_assert_eq(flp_struct_read(kinds[i].id, &given, &got), FLP_OK, "%s", flp_error_detail());
    cr_expect_arr_eq(&got, &given, kinds[i].bytes, "%s", kinds[i].type);
    cr_expect_eq(((unsigned char *)&got)[kinds[i].bytes], 0, "%s: no byte more", kinds[i].type);
  }
}

Test(structs, sizes_that_no_release_has_are_refused) {
  for (int i = 0; i < KINDS; i++) {
    uint32_t sizes[] = {0, 4, kinds[i].first - 8, kinds[i].bytes + 4, 4104, UINT32_MAX};
    for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++) {
      room given = fill(sizes[j], 0), got;
      char detail[256];
      snprintf(detail, sizeof detail,
               "%s.struct_bytes is %u (accepted: multiples of 8 from %u to 4096; the %s of this library has %u, start "
               "from its _INIT value)",
               kinds[i].name, sizes[j], kinds[i].first, kinds[i].type, kinds[i].bytes);
      expect_refused(flp_struct_read(kinds[i].id, &given, &got), detail);
      cr_expect_eq(flp_struct_check(kinds[i].id, &given), FLP_ERROR_ARGUMENT);
    }
  }
}

Test(structs, a_newer_struct_may_have_zeros_beyond) {
  for (int i = 0; i < KINDS; i++) {
    uint32_t bytes = kinds[i].bytes + 24;
    room given = fill(bytes, 7), got = {{0}};
    memset((char *)&given + kinds[i].bytes, 0, 24); /* 7 again behind its end */
    cr_assert_eq(flp_struct_read(kinds[i].id, &given, &got), FLP_OK, "%s", flp_error_detail());
    cr_expect_eq(*(uint32_t *)&got, kinds[i].bytes);
    cr_expect_arr_eq((char *)&got + 4, (char *)&given + 4, kinds[i].bytes - 4);
    ((char *)&given)[bytes - 1] = 1;
    char detail[256];
    snprintf(detail, sizeof detail,
             "%s.struct_bytes is %u and its byte %u is not 0, but the %s of this library has %u (accepted: 0 in all "
             "bytes beyond them)",
             kinds[i].name, bytes, bytes - 1, kinds[i].type, kinds[i].bytes);
    expect_refused(flp_struct_read(kinds[i].id, &given, &got), detail);
  }
}

/* flp_options has grown since 0.1.0: what lies behind an older one is not of it. */
Test(structs, an_older_struct_is_read_over_the_initial_value) {
  room given = {{0}};
  given.options = (flp_options)FLP_OPTIONS_INIT;
  given.options.device = FLP_DEVICE_HOST;
  given.options.tune = "forward:stages=4";
  memset(&given.options.cache_dir, 0xa5, 256);
  given.options.struct_bytes = 64;
  flp_options got;
  cr_assert_eq(flp_options_resolve(&given.options, &got), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(got.struct_bytes, sizeof got);
  cr_expect_eq(got.device, FLP_DEVICE_HOST);
  cr_expect_str_eq(got.tune, "forward:stages=4");
  cr_expect_null(got.cache_dir);
  cr_expect_null(got.cache_path);
}

/* Else an older library, which takes nothing but 0 beyond its own fields, would refuse every newer program. */
Test(structs, fields_that_were_added_start_at_0) {
  static const room inits[KINDS] = {
      {.spec = FLP_SPEC_INIT},         {.options = FLP_OPTIONS_INIT},
      {.args = FLP_ARGS_INIT},         {.select_args = FLP_SELECT_ARGS_INIT},
      {.scale_args = FLP_SCALE_ARGS_INIT}, {.diverge_args = FLP_DIVERGE_ARGS_INIT},
      {.layout = FLP_LAYOUT_INIT},
      {.description = FLP_LOSS_DESCRIPTION_INIT}, {.stats = FLP_ARENA_STATS_INIT},
  };
  for (int i = 0; i < KINDS; i++) {
    const unsigned char *init = (const unsigned char *)&inits[i];
    for (uint32_t at = kinds[i].first; at < kinds[i].bytes; at++) cr_expect_eq(init[at], 0, "%s %u", kinds[i].type, at);
  }
}

/* Programs carry these as numbers, and no function or struct of the library names them: packaging/abi is blind to them. */
Test(structs, constants_of_0_1_0_stay) {
  static const int grads[] = {FLP_GRAD_HIDDEN, FLP_GRAD_WEIGHT, FLP_GRAD_BIAS}, wanted[] = {1, 2, 4};
  cr_expect_arr_eq(grads, wanted, sizeof wanted);
  cr_expect_eq(FLP_DEVICE_HOST, -1);
  static const int sizes[] = {FLP_LOSS_TITLE_BYTES, FLP_LOSS_NAME_BYTES,  FLP_LOSS_PARAMETERS_MAX,
                              FLP_LOSS_VECTORS_MAX, FLP_LOSS_METRICS_MAX, FLP_LOSS_INPUTS_MAX};
  static const int sizes_wanted[] = {64, 32, 8, 8, 8, 14};
  cr_expect_arr_eq(sizes, sizes_wanted, sizeof sizes_wanted);
}

Test(structs, writing_keeps_to_the_bytes_that_both_have) {
  for (int i = 0; i < KINDS; i++) {
    uint32_t sizes[] = {kinds[i].first, kinds[i].bytes, kinds[i].bytes + 16};
    for (size_t j = 0; j < 3; j++) {
      room value = fill(kinds[i].bytes, 9), out = fill(sizes[j], 0);
      uint32_t shared = sizes[j] < kinds[i].bytes ? sizes[j] : kinds[i].bytes;
      flp_struct_write(kinds[i].id, &value, &out);
      cr_expect_eq(*(uint32_t *)&out, sizes[j], "struct_bytes stays the caller's");
      cr_expect_arr_eq((char *)&out + 4, (char *)&value + 4, shared - 4);
      for (uint32_t at = shared; at < sizeof out; at++) cr_assert_eq(((char *)&out)[at], 0, "%s %u", kinds[i].type, at);
    }
  }
}

#define NEXT(member, type, INIT)  \
  memset(&r, 0, sizeof r);        \
  r.member = (type)INIT;          \
  r.member.struct_bytes += 2 * 8; \
  ((char *)&r)[sizeof(type) + 15] = (char)bad

Test(structs, every_public_function_takes_structs_of_the_next_release) {
  room r;
  flp_plan *plan = NULL;
  size_t bytes;
  for (int bad = 0; bad < 2; bad++) {
    flp_status want = bad ? FLP_ERROR_ARGUMENT : FLP_OK;
    flp_options host = FLP_OPTIONS_INIT;
    host.device = FLP_DEVICE_HOST;
    NEXT(spec, flp_spec, FLP_SPEC_INIT);
    r.spec.vocab = 16;
    r.spec.hidden = 8;
    flp_spec small = r.spec;
    small.struct_bytes = sizeof small;
    cr_expect_eq(flp_plan_create(&r.spec, &host, &plan), want);
    flp_plan_destroy(plan);
    cr_expect_eq(flp_spec_saved(&r.spec, 1, 0, &bytes), want);
    NEXT(options, flp_options, FLP_OPTIONS_INIT);
    r.options.device = FLP_DEVICE_HOST;
    cr_expect_eq(flp_plan_create(&small, &r.options, &plan), want);
    flp_plan_destroy(plan);
    cr_assert_eq(flp_plan_create(&small, &host, &plan), FLP_OK);
    NEXT(layout, flp_layout, FLP_LAYOUT_INIT);
    cr_expect_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, 3, 0, &r.layout), want);
    cr_expect_eq(r.layout.products, !bad);
    NEXT(args, flp_args, FLP_ARGS_INIT);
    cr_expect_eq(flp_execute(plan, &r.args), want);
    flp_plan_destroy(plan);
    flp_arena *arena;
    cr_assert_eq(flp_arena_create(FLP_DEVICE_HOST, &arena), FLP_OK);
    NEXT(stats, flp_arena_stats, FLP_ARENA_STATS_INIT);
    cr_expect_eq(flp_arena_get_stats(arena, &r.stats), want);
    flp_arena_destroy(arena);
    uint8_t program[4096];
    cr_assert_eq(flp_loss_builtin_bytes("grpo", program, sizeof program, &bytes), FLP_OK);
    NEXT(description, flp_loss_description, FLP_LOSS_DESCRIPTION_INIT);
    cr_expect_eq(flp_loss_describe(program, bytes, &r.description), want);
    cr_expect_eq(r.description.struct_bytes, sizeof(flp_loss_description) + 16);
  }
}

Test(structs, operations_without_a_head_take_structs_of_the_next_release) {
  room r;
  flp_plan *plan = NULL;
  uint8_t program[4096];
  flp_options host = FLP_OPTIONS_INIT;
  host.device = FLP_DEVICE_HOST;
  for (int bad = 0; bad < 2; bad++) {
    flp_status want = bad ? FLP_ERROR_ARGUMENT : FLP_OK;
    flp_spec small = FLP_SPEC_INIT;
    small.vocab = 16;
    small.op = FLP_OP_SELECT;
    cr_assert_eq(flp_plan_create(&small, &host, &plan), FLP_OK, "%s", flp_error_detail());
    NEXT(select_args, flp_select_args, FLP_SELECT_ARGS_INIT);
    cr_expect_eq(flp_select(plan, &r.select_args), want);
    flp_plan_destroy(plan);
    small.op = FLP_OP_SCALE;
    cr_assert_eq(flp_plan_create(&small, &host, &plan), FLP_OK, "%s", flp_error_detail());
    NEXT(scale_args, flp_scale_args, FLP_SCALE_ARGS_INIT);
    cr_expect_eq(flp_scale(plan, &r.scale_args), want);
    flp_plan_destroy(plan);
    small.op = FLP_OP_DIVERGE;
    small.loss = program;
    cr_assert_eq(flp_loss_builtin_bytes("jsd", program, sizeof program, &small.loss_bytes), FLP_OK);
    cr_assert_eq(flp_plan_create(&small, &host, &plan), FLP_OK, "%s", flp_error_detail());
    NEXT(diverge_args, flp_diverge_args, FLP_DIVERGE_ARGS_INIT);
    cr_expect_eq(flp_diverge(plan, &r.diverge_args), want);
    flp_plan_destroy(plan);
  }
}
#undef NEXT
