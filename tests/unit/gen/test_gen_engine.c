/* test_gen_engine.c: the generator as a whole: reproducible, self-contained, honest about what it cannot do. */
#include <pthread.h>

#include "runtime/kernel/provider.h"
#include "tests/unit/support/gen_case.h"

FLP_API const flp_provider *flp_provider_get(uint32_t version);

static const flp_kernel_kind kinds[] = {FLP_KERNEL_ROWS,        FLP_KERNEL_FORWARD,     FLP_KERNEL_DZ,
                                        FLP_KERNEL_GRAD_HIDDEN, FLP_KERNEL_GRAD_WEIGHT, FLP_KERNEL_SELECT};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static flpgen_result generate(const flp_kernel_key *key) {
  flpgen_options options = {.want_ir = 1, .want_opt_ir = 1};
  return gen_case_generate(key, &options);
}

static bool is_same(const flpgen_result *a, const flpgen_result *b) {
  return a->ptx_bytes == b->ptx_bytes && memcmp(a->ptx, b->ptx, a->ptx_bytes) == 0 && strcmp(a->ir, b->ir) == 0 &&
         strcmp(a->opt_ir, b->opt_ir) == 0 && memcmp(&a->desc, &b->desc, sizeof a->desc) == 0;
}

Test(gen_engine, same_key_same_bytes) {
  for (int i = 0; i < KINDS; i++) {
    flp_kernel_key key = gen_case_key(kinds[i]);
    flpgen_result a = generate(&key), b = generate(&key);
    cr_expect(is_same(&a, &b), "%s", flp_kernel_kind_name(kinds[i]));
    flpgen_result_clear(&a);
    flpgen_result_clear(&b);
  }
}

Test(gen_engine, ir_alone_is_the_same_ir) {
  flpgen_options alone = {.ir_only = 1};
  flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
  flpgen_result whole = generate(&key), ir = gen_case_generate(&key, &alone);
  cr_expect_str_eq(ir.ir, whole.ir);
  cr_expect_null(ir.ptx);
  cr_expect_null(ir.opt_ir);
  cr_expect_eq(ir.desc.ptx_major, 0);
  flpgen_result_clear(&whole);
  flpgen_result_clear(&ir);
}

static void *generate_in_thread(void *argument) {
  flp_kernel_key key = gen_case_key(*(const flp_kernel_kind *)argument);
  flpgen_result *result = malloc(sizeof *result);
  *result = generate(&key);
  return result;
}

Test(gen_engine, threads_do_not_meet) {
  pthread_t threads[2 * KINDS];
  void *results[2 * KINDS];
  for (int i = 0; i < 2 * KINDS; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, generate_in_thread, (void *)&kinds[i % KINDS]), 0);
  for (int i = 0; i < 2 * KINDS; i++) pthread_join(threads[i], &results[i]);
  for (int i = 0; i < KINDS; i++) cr_expect(is_same(results[i], results[i + KINDS]));
  for (int i = 0; i < 2 * KINDS; i++) {
    flpgen_result_clear(results[i]);
    free(results[i]);
  }
}

Test(gen_engine, descriptor_reports_what_the_kernel_is) {
  flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
  flpgen_result result = generate(&key);
  const flp_kernel_desc *d = &result.desc;
  cr_expect_eq(memcmp(&d->key, &key, sizeof key), 0);
  cr_expect_arr_eq(d->sources, flp_sources_hash(), 32);
  cr_expect_eq(d->ptx_major, 7);
  cr_expect_eq(d->ptx_minor, 0);
  cr_assert_eq(d->entry_count, 1);
  cr_expect_str_eq(d->entries[0].name, "forward");
  char signature[FLP_ABI_PARAMS_MAX + 1];
  cr_expect_str_eq(d->entries[0].signature, flp_abi_signature(flp_abi_find("forward"), signature));
  cr_expect_not_null(strstr(result.ptx, ".version 7.0\n.target sm_80\n.address_size 64"));
  cr_expect_not_null(strstr(result.ptx, ".visible .entry flp_forward("));
  uint8_t bytes[FLP_DESC_BYTES_MAX];
  flp_kernel_desc back;
  size_t length = flp_kernel_desc_write(d, bytes, sizeof bytes);
  cr_expect_eq(flp_kernel_desc_read(bytes, length, &back), FLP_OK, "%s", flp_error_detail());
  flpgen_result_clear(&result);
  cr_expect_null(result.ptx);
  flpgen_result_clear(&result);
  flpgen_result_clear(NULL);
}

Test(gen_engine, rows_has_every_entry) {
  static const char *const names[] = {"prepare", "gather",   "combine",     "merge",
                                      "record",  "dz_scale", "bias_reduce", "fill"};
  flp_kernel_key key = gen_case_key(FLP_KERNEL_ROWS);
  flpgen_result result = generate(&key);
  cr_expect_eq(result.desc.entry_count, sizeof names / sizeof names[0]);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, ".entry flp_%s(", names[i]);
    cr_expect_not_null(strstr(result.ptx, symbol), "%s", symbol);
  }
  flpgen_result_clear(&result);
}

/* Under the names that runtime/kernel/abi.h gives them. */
Test(gen_engine, constants_of_the_interface_reach_the_template) {
  char text[256], expected[128], error[512];
  flpgen_result result;
  snprintf(text, sizeof text,
           "return function(k)\nlocal n, a = 0, k.abi\nfor _ in pairs(a) do n = n + 1 end\n"
           "error(n .. ' ' .. a.GROUP_COLUMNS .. ' ' .. a.ROW_BAD .. ' ' .. a.EXPAND_COLUMNS, 0)\nend");
  int count = 0;
#define COUNT(name, value) count++;
  FLP_ABI_CONSTANT_LIST(COUNT)
#undef COUNT
  snprintf(expected, sizeof expected, "%d %d %d %d", count, FLP_GROUP_COLUMNS, FLP_ROW_BAD, FLP_EXPAND_COLUMNS);
  cr_expect_eq(gen_case_text(text, strlen(text), &result, error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, expected);
}

Test(gen_engine, imports_run_once_and_come_from_the_folder) {
  const char *folder = gen_case_folder("import");
  const char *library = "local t = {n = 0}\nreturn t";
  const char *text =
      "return function(k, spec)\nk.import('part').n = 41\nlocal t = k.import 'part'\nerror('n is ' .. t.n + 1)\nend";
  gen_case_write(folder, "common/part.lua", library, strlen(library));
  gen_case_write(folder, "portable/forward.lua", text, strlen(text));
  flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
  flpgen_options options = {.template_dir = folder};
  gen_case_refused(&key, &options, FLP_ERROR_COMPILE, "portable/forward.lua:4: n is 42");
  gen_case_write(folder, "common/part.lua", "return 1 +", 10);
  gen_case_refused(&key, &options, FLP_ERROR_COMPILE, "common/part.lua:1: unexpected symbol near <eof>");
  gen_case_remove(folder);
}

/* An architecture's file takes the place of the portable one of its name, and of no other. */
Test(gen_engine, an_architecture_replaces_portable_templates_alone) {
  static const char main_text[] = "return function(k)\nerror(k.import 'part', 0)\nend";
  static const struct {
    const char *arch, *file, *expected; /* file: added to the folder; what the kernel then finds */
  } steps[] = {
      {"sm_90a", "common/part.lua", "common/part.lua"},
      {"sm_90a", "portable/part.lua",
       "portable/forward.lua:2: portable/part.lua cannot take the place of common/part.lua"},
      {"sm_90a", NULL, "portable/part.lua"}, /* the common one is taken away */
      {"sm_90a", "sm_90a/part.lua", "sm_90a/part.lua"},
      {"sm_90", NULL, "portable/part.lua"},
      {"sm_90a", "common/part.lua", "portable/forward.lua:2: sm_90a/part.lua cannot take the place of common/part.lua"},
  };
  const char *folder = gen_case_folder("places");
  gen_case_write(folder, "portable/forward.lua", main_text, sizeof main_text - 1);
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    char text[64], path[6000];
    flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
    flpgen_options options = {.template_dir = folder};
    snprintf(key.arch, sizeof key.arch, "%s", steps[i].arch);
    snprintf(text, sizeof text, "return '%s'", steps[i].file ? steps[i].file : "");
    snprintf(path, sizeof path, "%s/common/part.lua", folder);
    if (steps[i].file)
      gen_case_write(folder, steps[i].file, text, strlen(text));
    else
      unlink(path);
    gen_case_refused(&key, &options, FLP_ERROR_COMPILE, steps[i].expected);
  }
  gen_case_remove(folder);
}

/* ---- what it cannot do ---- */

Test(gen_engine, unknown_architecture_is_unsupported) {
  flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
  strcpy(key.arch, "sm_75");
  char list[256], want[512];
  cr_expect_eq(strncmp(flp_arch_list(0, 0, ", ", list, sizeof list), "sm_80, sm_86, ", 14), 0, "%s", list);
  snprintf(want, sizeof want, "key.arch: no templates for 'sm_75'; there are for %s", list);
  gen_case_refused(&key, NULL, FLP_ERROR_UNSUPPORTED, want);
}

/* The table of arch.c knows each row of runtime/kernel/arch.c, and LLVM what it names. */
Test(gen_engine, every_architecture_has_a_target) {
  const flp_arch *arch;
  for (int i = 0; (arch = flp_arch_at(i)); i++) {
    cr_assert(flpgen_arch_supported(arch->name), "%s", arch->name);
    flp_kernel_key key = gen_case_key(FLP_KERNEL_ROWS);
    snprintf(key.arch, sizeof key.arch, "%s", arch->name);
    flpgen_result result = gen_case_generate(&key, NULL);
    cr_expect_str_eq(result.desc.key.arch, arch->name);
    flpgen_result_clear(&result);
  }
  cr_expect(!flpgen_arch_supported("sm_75") && !flpgen_arch_supported("sm_90aa") && !flpgen_arch_supported(""));
}

Test(gen_engine, unknown_kind_is_an_argument_error) {
  flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
  key.kind = (flp_kernel_kind)FLP_KERNEL_KINDS;
  flpgen_result result;
  char small[10], want[64];
  snprintf(want, sizeof want, "key.kind: %d is no kernel kind (1 to %d)", FLP_KERNEL_KINDS, FLP_KERNEL_KINDS - 1);
  gen_case_refused(&key, NULL, FLP_ERROR_ARGUMENT, want);
  cr_expect_eq(flpgen_generate(&key, NULL, &result, small, sizeof small), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(small, "key.kind:", "a message is truncated to its capacity");
  cr_expect_eq(flpgen_generate(&key, NULL, &result, NULL, 0), FLP_ERROR_ARGUMENT);
}

Test(gen_engine, a_missing_template_folder_is_an_io_error) {
  flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
  flpgen_options options = {.template_dir = "/nonexistent/templates"};
  gen_case_refused(&key, &options, FLP_ERROR_IO,
                   "template_dir: '/nonexistent/templates' cannot be read or holds over 256 templates");
}

/* ---- the hash of sources ---- */

Test(gen_engine, hash_follows_the_templates) {
  uint8_t embedded[32], folder_hash[32], changed[32];
  char command[8500];
  cr_assert_eq(flpgen_sources_hash(NULL, embedded), FLP_OK);
  cr_expect_arr_eq(embedded, flp_sources_hash(), 32);
  flpgen_options options = {.template_dir = FLP_TEST_TREE "/templates"};
  cr_assert_eq(flpgen_sources_hash(&options, folder_hash), FLP_OK);
  cr_expect_arr_eq(folder_hash, embedded, 32, "a folder equal to the embedded templates has their hash");

  const char *folder = gen_case_folder("hash");
  snprintf(command, sizeof command, "cp -r '%s'/. '%s'", FLP_TEST_TREE "/templates", folder);
  cr_assert_eq(system(command), 0);
  options.template_dir = folder;
  cr_assert_eq(flpgen_sources_hash(&options, changed), FLP_OK);
  cr_expect_arr_eq(changed, embedded, 32);
  gen_case_write(folder, "portable/forward.lua", "return 1", 8);
  cr_assert_eq(flpgen_sources_hash(&options, changed), FLP_OK);
  cr_expect_neq(memcmp(changed, embedded, 32), 0, "another text, another hash");
  gen_case_remove(folder);
}

/* ---- the provider ---- */

Test(gen_engine, provider_serves_its_version_only) {
  const flp_provider *provider = flp_provider_get(FLP_PROVIDER_VERSION);
  cr_assert_not_null(provider);
  cr_expect_null(flp_provider_get(FLP_PROVIDER_VERSION + 1));
  cr_expect_arr_eq(provider->sources_hash(), flp_sources_hash(), 32);
  flp_kernel_key key = gen_case_key(FLP_KERNEL_GRAD_WEIGHT);
  flp_kernel_desc desc;
  char *ptx, error[512];
  size_t bytes;
  cr_assert_eq(provider->generate(&key, NULL, 0, &desc, &ptx, &bytes, error, sizeof error), FLP_OK, "%s", error);
  cr_expect_eq(strlen(ptx), bytes);
  cr_expect_str_eq(desc.entries[0].name, "grad_weight");
  provider->free_ptx(ptx);
  strcpy(key.arch, "sm_1");
  cr_expect_eq(provider->generate(&key, NULL, 0, &desc, &ptx, &bytes, error, sizeof error), FLP_ERROR_UNSUPPORTED);
  cr_expect_null(ptx);
  cr_expect_eq(bytes, 0);
}

/* ---- architectures ---- */

Test(gen_engine, every_architecture_assembles) {
  static const char *const arches[] = {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"};
  if (!gen_case_ptxas()) cr_skip_test("no ptxas");
  for (size_t i = 0; i < sizeof arches / sizeof arches[0]; i++) {
    flp_kernel_key key = gen_case_key(FLP_KERNEL_ROWS);
    strcpy(key.arch, arches[i]);
    flpgen_result result = generate(&key);
    char report[8192];
    cr_expect_eq(gen_case_assemble(result.ptx, result.ptx_bytes, arches[i], report, sizeof report), 0, "%s: %s",
                 arches[i], report);
    flpgen_result_clear(&result);
  }
}
