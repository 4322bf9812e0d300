/* test_gen_sm90a.c: each word of Hopper gives the PTX that it promises, ptxas takes it for sm_90a, and no other
 * architecture does; and the forward kernel of sm_90a assembles without advisories. */
#include "tests/unit/support/gen_case.h"

typedef struct word_case {
  const char *word, *body;
  const char *patterns[5];
} word_case;

#define KEEP "\nk.store(p.part, k.tid(), x)"
#define ACCUMULATORS "local acc = {}\nfor i = 1, 128 do acc[i] = k.const(k.f32, 0.0) end\n"
#define KEEP_ACCUMULATORS "\nfor i, v in ipairs(acc) do k.store(p.part, k.tid() * 128 + i, v) end"
#define MAP "local map = k.convert(k.i64, p.depth)\n"
#define PRODUCT(kind, a, b)                                                                                   \
  ACCUMULATORS "acc = k.wgmma{kind = '" kind                                                                  \
               "', columns = 128, blocks = 2, steps = 2, a = p.capacity, b = p.capacity + 7, a_major = '" a   \
               "', b_major = '" b                                                                             \
               "', a_step = 2, b_step = 128, a_block = 512, keep = k.gt(p.depth, 0), into = acc, wait = 1}\n" \
               "acc = k.wgmma_wait(0, acc)" KEEP_ACCUMULATORS

#define TERMS(b, pairs)                                                                                            \
  "local a = {}\nfor i = 1, 2 do a[i] = {p.depth + i, p.bands, p.depth, p.bands} end\n"                            \
  "local x = k.wgmma_terms{columns = 32, a = a, b = p.capacity, b_at = {0, 96}, b_major = '" b "', pairs = " pairs \
  "}\n"
#define KEEP_ARRAY "\nfor i, v in ipairs(x) do k.store(p.part, k.tid() * 16 + i, v) end"

static const word_case cases[] = {
    {"shared 1024", "local x = k.shared(1024)" KEEP, {".extern .shared .align 1024 .b8 flp_shared[]"}},
    {"mbarrier_init mbarrier_fence",
     "k.mbarrier_init(k.shared(), 2)\nk.mbarrier_fence()",
     {"mbarrier.init.shared::cta.b64 [%r", "fence.mbarrier_init.release.cluster;"}},
    {"mbarrier_expect", "k.mbarrier_expect(k.shared(), p.depth)", {"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r"}},
    {"mbarrier_wait",
     "k.mbarrier_wait(k.shared(), 1)\nk.mbarrier_wait(k.shared() + 8, 0)",
     {"mbarrier.try_wait.parity.shared::cta.b64 p, [%r"}},
    {"mbarrier_arrive",
     "k.mbarrier_arrive(k.shared(), k.eq(k.tid(), 0))",
     {"@p mbarrier.arrive.shared::cta.b64 _, [%r"}},
    {"cluster_address mbarrier_arrive_there",
     "k.mbarrier_arrive_there(k.cluster_address(k.shared(), k.tid() & 1), k.lt(k.tid(), 2))",
     {"mapa.shared::cluster.u32", "@p mbarrier.arrive.shared::cluster.b64 _, [%r"}},
    {"cluster_rank cluster_sync",
     "local x = k.cluster_rank()\nk.cluster_sync()" KEEP,
     {", %cluster_ctarank;", "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"}},
    {"barrier_sync barrier_arrive",
     "k.barrier_sync(2, 256)\nk.barrier_arrive(p.depth, 256)",
     {"bar.sync %r", "bar.arrive %r"}},
    {"atomic_next", "local x = k.atomic_next(p.count)" KEEP, {"atom.relaxed.gpu.global.add.u32 %r"}},
    {"store_there",
     "k.store_there(k.shared(), p.depth, k.shared() + 8)",
     {"st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r"}},
    {"store_matrix",
     "k.store_matrix(k.shared(), p.depth, p.depth, p.depth, p.depth)",
     {"stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r"}},
    {"uniform", "k.uniform(k.tid())", {"redux.sync.or.b32"}},
    {"proxy_fence", "k.proxy_fence()", {"fence.proxy.async.shared::cta"}},
    {"tensor_store",
     MAP "k.tensor_store(map, k.shared(128), 64, p.bands)",
     {"cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd", "cp.async.bulk.commit_group"}},
    {"tensor_stores_read", "k.tensor_stores_read()", {"cp.async.bulk.wait_group.read 0"}},
    {"tensor_copy",
     MAP "k.tensor_copy(map, k.shared(128), k.shared(), 64, p.bands)",
     {"cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r", ", {%r"}},
    {"tensor_copy cast",
     MAP "k.tensor_copy(map, k.shared(128), k.shared(), 64, p.bands, {cast = 3})",
     {"complete_tx::bytes.multicast::cluster [%r", "], %rs"}},
    {"tensor_copy evict",
     MAP "k.tensor_copy(map, k.shared(128), k.shared(), 64, p.bands, {evict = 'first'})",
     {"complete_tx::bytes.L2::cache_hint [%r", "], %rd", "1364590687093260288"}},
    {"tensor_copy cast evict",
     MAP "k.tensor_copy(map, k.shared(128), k.shared(), 64, p.bands, {cast = 3, evict = 'last'})",
     {"complete_tx::bytes.multicast::cluster.L2::cache_hint [%r", "], %rs"}},
    {"wgmma bf16",
     PRODUCT("bf16", "k", "mn"),
     {"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%f", "}, da, db, p, 1, 1, 0, 1;", "a_low, 514;",
      "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 0;"}},
    {"wgmma_terms",
     TERMS("k", "{{2, 1}, {1, 2}, {1, 1}}") "x = k.wgmma_wait(0, x)" KEEP_ARRAY,
     {"wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%f", "}, db, 0, 1, 1, 0; add.u32 low, b_low, 96;",
      "}, db, 1, 1, 1, 0; add.u32 low, b_low, 0;", "wgmma.fence.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"}},
    {"wgmma_terms mn", TERMS("mn", "{{1, 1}}") "x = k.wgmma_wait(1, x)" KEEP_ARRAY, {"}, db, 0, 1, 1, 1;"}},
    {"wgmma fp16", PRODUCT("fp16", "mn", "k"), {".f32.f16.f16 {%f", "}, da, db, 1, 1, 1, 1, 0;", "b_low, 128;"}},
};

static bool stands_in(const char *ptx, const char *pattern) {
  char copy[256];
  snprintf(copy, sizeof copy, "%s", pattern);
  for (char *rest = copy, *one = strsep(&rest, "|"); one; one = strsep(&rest, "|"))
    if (strstr(ptx, one)) return true;
  return false;
}

Test(gen_sm90a, each_word_gives_its_instruction) {
  gen_case_arch = "sm_90a";
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flpgen_result result;
    char error[512], report[4096];
    cr_assert_eq(gen_case_body(cases[i].body, &result, error), FLP_OK, "%s: %s", cases[i].word, error);
    for (int n = 0; n < 5 && cases[i].patterns[n]; n++)
      cr_expect(stands_in(result.ptx, cases[i].patterns[n]), "%s: %s\n%s", cases[i].word, cases[i].patterns[n],
                result.ptx);
    if (gen_case_ptxas()) {
      int status = gen_case_assemble(result.ptx, result.ptx_bytes, "sm_90a", report, sizeof report);
      cr_expect_eq(status, 0, "%s: %s\n%s", cases[i].word, report, result.ptx);
    }
    flpgen_result_clear(&result);
  }
}

Test(gen_sm90a, roles_take_their_registers) {
  if (!gen_case_ptxas()) cr_skip_test("no ptxas");
  static const char text[] =
      "return function(k, spec)\nk.kernel {entry = \"forward_map\", threads = 256, min_ctas = 1, body = function(p)\n"
      "local warp = k.shuffle_idx(k.warp(), 0)\n"
      "k.branch(k.lt(warp, 4), function() k.registers_lower(24) end, function() k.registers_raise(240) end)\nend}\nend";
  flpgen_result result;
  char error[512], report[4096];
  gen_case_arch = "sm_90a";
  cr_assert_eq(gen_case_text(text, sizeof text - 1, &result, error), FLP_OK, "%s", error);
  cr_expect_not_null(strstr(result.ptx, "setmaxnreg.dec.sync.aligned.u32 24;"));
  cr_expect_not_null(strstr(result.ptx, "setmaxnreg.inc.sync.aligned.u32 240;"));
  cr_expect_eq(gen_case_assemble(result.ptx, result.ptx_bytes, "sm_90a", report, sizeof report), 0, "%s", report);
  cr_expect_null(strstr(report, "C75"), "%s", report);
  flpgen_result_clear(&result);
}

Test(gen_sm90a, no_other_architecture_has_the_words) {
  flpgen_result result;
  char error[512];
  cr_expect_eq(gen_case_body("k.mbarrier_fence()", &result, error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "portable/forward.lua:3: k.mbarrier_fence: architecture sm_80 does not have it; sm_90a does");
}

static void expect_refusal(const char *body, const char *message) {
  flpgen_result result;
  char error[512];
  gen_case_arch = "sm_90a";
  cr_expect_eq(gen_case_body(body, &result, error), FLP_ERROR_COMPILE, "%s", body);
  cr_expect_str_eq(error, message, "%s", error);
}

Test(gen_sm90a, refusals_report_what_is_accepted) {
  expect_refusal("k.registers_raise(100)", "portable/forward.lua:3: k.registers_raise: 100 is no multiple of 8");
  expect_refusal("k.wgmma{kind = 'tf32'}",
                 "portable/forward.lua:3: k.wgmma: kind: expected \"bf16\" or \"fp16\", got \"tf32\"");
  expect_refusal("k.wgmma{sort = 'bf16'}",
                 "portable/forward.lua:3: k.wgmma: unknown field 'sort'; accepted are kind, columns, blocks, steps, "
                 "a_step, b_step, a_block, a_major, b_major, wait, a, b, keep, into");
  expect_refusal("k.wgmma{kind = 'bf16', columns = 12}",
                 "portable/forward.lua:3: k.wgmma: columns: 12 is no multiple of 8");
  expect_refusal("k.tensor_copy(k.const(k.i64, 0), 0, 0, 0, 0, {evict = 'soon'})",
                 "portable/forward.lua:3: k.tensor_copy: evict: expected \"first\" or \"last\", got string");
  expect_refusal(
      "k.wgmma_terms{kind = 'bf16'}",
      "portable/forward.lua:3: k.wgmma_terms: unknown field 'kind'; accepted are columns, a, b, b_at, b_major, pairs");
  expect_refusal("k.wgmma_terms{columns = 20, b_major = 'k'}",
                 "portable/forward.lua:3: k.wgmma_terms: columns: 20 is no multiple of 8");
  expect_refusal("k.wgmma_terms{columns = 8, b_major = 'k', a = {}}",
                 "portable/forward.lua:3: k.wgmma_terms: a: 0 elements; 1 to 8 are accepted");
  expect_refusal("k.wgmma_terms{columns = 8, b_major = 'm'}",
                 "portable/forward.lua:3: k.wgmma_terms: b_major: expected \"k\" or \"mn\", got string");
  expect_refusal("k.wgmma_terms{columns = 8, b_major = 'k', a = {{1, 2, 3, 4}}, b_at = {0}, pairs = {{1, 2}}}",
                 "portable/forward.lua:3: k.wgmma_terms: pairs: term of b: 2 is not in [1, 1]");
  expect_refusal("k.shared(96)", "portable/forward.lua:3: k.shared: alignment: 96 is no power of 2");
}

/* The forward kernel over its lattice: wgmma stays asynchronous, roles keep their registers, and maps are not
 * copied. */
Test(gen_sm90a, forward_assembles_without_advisories) {
  if (!gen_case_ptxas()) cr_skip_test("no ptxas");
  gen_case_arch = "sm_90a";
  for (unsigned i = 0; i < 8; i++) {
    flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
    key.dtype = i & 1 ? FLP_DTYPE_FP16 : FLP_DTYPE_BF16;
    key.entropy = !(i & 2);
    key.bias = key.softcap = (i & 4) != 0;
    flpgen_result result;
    char error[512], report[4096];
    cr_assert_eq(flpgen_generate(&key, NULL, &result, error, sizeof error), FLP_OK, "%s", error);
    cr_expect_str_eq(result.desc.entries[0].name, "forward_map");
    cr_expect_eq(result.desc.cluster, 2);
    cr_expect_null(strstr(result.ptx, ".local"), "no local memory");
    cr_expect_eq(gen_case_assemble(result.ptx, result.ptx_bytes, "sm_90a", report, sizeof report), 0, "%s", report);
    cr_expect_null(strstr(report, "C75"), "%s", report);
    flpgen_result_clear(&result);
  }
}

static flp_kernel_key hopper_key(flp_kernel_kind kind, flp_dtype dtype, flp_tunables tune) {
  flp_kernel_key key = gen_case_key(kind);
  memcpy(key.arch, "sm_90a", sizeof "sm_90a");
  key.dtype = dtype;
  key.tune = tune;
  return key;
}

Test(gen_sm90a, tunables_that_cannot_be_built_are_refused) {
  static const struct {
    flp_kernel_kind kind;
    flp_dtype dtype;
    flp_tunables tune;
    const char *message;
  } refused[] = {
      {FLP_KERNEL_FORWARD, FLP_DTYPE_FP32, {.schedule = FLP_SCHEDULE_PING_PONG}, "one of cooperative is"},
      {FLP_KERNEL_FORWARD, FLP_DTYPE_FP32, {.columns = 192}, "columns 192 is not accepted; one of 64, 128 is"},
      {FLP_KERNEL_DZ, FLP_DTYPE_FP32, {.rows = 256}, "rows 256 is not accepted; one of 128 is"},
      {FLP_KERNEL_FORWARD, FLP_DTYPE_FP32, {.stages = 5}, "5 stages of 128x128 need 262312 bytes of shared memory"},
      {FLP_KERNEL_PRODUCTS, FLP_DTYPE_FP32, {.columns = 64, .cluster = 4}, "would load 16 columns; boxes have 32"},
      {FLP_KERNEL_PRODUCTS, FLP_DTYPE_BF16, {.columns = 64}, "would load 32 columns; boxes have 64"},
      {FLP_KERNEL_FORWARD, FLP_DTYPE_BF16, {.rows = 256}, "needs 384 accumulators a thread; at most 192 fit"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    flp_kernel_key key = hopper_key(refused[i].kind, refused[i].dtype, refused[i].tune);
    flpgen_result result;
    char error[512];
    cr_expect_eq(flpgen_generate(&key, NULL, &result, error, sizeof error), FLP_ERROR_COMPILE, "%s",
                 refused[i].message);
    cr_expect_not_null(strstr(error, refused[i].message), "%s\n%s", refused[i].message, error);
  }
}

/* fp32: whatever the tile, sums stay in registers and wgmma asynchronous. */
Test(gen_sm90a, fp32_tiles_assemble_without_spills) {
  static const flp_tunables tunes[] = {{0}, {.columns = 64, .stages = 6, .cluster = 1}, {.cluster = 4}};
  static const flp_kernel_kind kinds[] = {FLP_KERNEL_FORWARD, FLP_KERNEL_DZ, FLP_KERNEL_PRODUCTS};
  if (!gen_case_ptxas()) cr_skip_test("no ptxas");
  for (size_t i = 0; i < 9; i++) {
    flp_kernel_key key = hopper_key(kinds[i % 3], FLP_DTYPE_FP32, tunes[i / 3]);
    flpgen_result result;
    char error[512], report[4096];
    cr_assert_eq(flpgen_generate(&key, NULL, &result, error, sizeof error), FLP_OK, "%s", error);
    cr_expect_eq(result.desc.tile_depth, 32);
    cr_expect_eq(gen_case_assemble(result.ptx, result.ptx_bytes, "sm_90a", report, sizeof report), 0, "%s", report);
    cr_expect_null(strstr(report, "C75"), "%s", report);
    cr_expect_not_null(strstr(report, " 0 bytes spill stores, 0 bytes spill loads"), "%s", report);
    flpgen_result_clear(&result);
  }
}
