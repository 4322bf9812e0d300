/* test_gen_words.c: each word of the vocabulary gives the PTX that it promises, and ptxas takes it for sm_80. */
#include "tests/unit/support/gen_case.h"

typedef struct word_case {
  const char *word, *body;
  const char *patterns[4]; /* all stand in the PTX; one that begins with '!' must not */
} word_case;

/* Values that LLVM cannot fold, and a store that keeps x alive. */
#define INTEGER "local i, j = p.depth, p.bands\n"
#define FLOAT "local f, g = p.cap_in, k.load(k.f32, p.zy, 0)\n"
#define KEEP "\nk.store(p.part, k.tid(), x)"
#define KEEP_CONDITION "\nk.store(p.part, k.tid(), k.select(x, k.const(k.i32, 3), 5))"
#define KEEP_ARRAY "\nfor n, y in ipairs(x) do k.store(p.part, k.tid() * 8 + n, y) end"

static const word_case cases[] = {
    {"+", INTEGER "local x = i + j" KEEP, {"add.s32"}},
    {"- *", INTEGER "local x = (i - j) * j" KEEP, {"sub.s32", "mul.lo.s32"}},
    {"//", INTEGER "local x = i // j" KEEP, {"div.s32"}},
    {"%", INTEGER "local x = i % j" KEEP, {"rem.s32"}},
    {"udiv", INTEGER "local x = k.udiv(i, j)" KEEP, {"div.u32"}},
    {"urem", INTEGER "local x = k.urem(i, j)" KEEP, {"rem.u32"}},
    {"& |", INTEGER "local x = (i & 12) | j" KEEP, {"and.b32", "or.b32"}},
    {"~", INTEGER "local x = i ~ j" KEEP, {"xor.b32"}},
    {"<<", INTEGER "local x = i << j" KEEP, {"shl.b32"}},
    {">>", INTEGER "local x = i >> j" KEEP, {"shr.s32"}},
    {"lshr", INTEGER "local x = k.lshr(i, j)" KEEP, {"shr.u32"}},
    {"unary -", INTEGER "local x = -(i * j)" KEEP, {"neg.s32"}},
    {"float * +: two roundings", FLOAT "local x = f * g + g" KEEP, {"mul.rn.ftz.f32", "add.rn.ftz.f32", "!fma."}},
    {"float * -: two roundings", FLOAT "local x = g - f * g" KEEP, {"mul.rn.ftz.f32", "sub.rn.ftz.f32", "!fma."}},
    {"float /", FLOAT "local x = f / g" KEEP, {"div.rn.ftz.f32"}},
    {"f64", "local a = k.convert(k.f64, p.cap_in)\nlocal x = a * a + a" KEEP, {"mul.rn.f64", "add.rn.f64", "!fma."}},
    {"f64 /", "local a = k.convert(k.f64, p.cap_in)\nlocal x = (a + 1) / a" KEEP, {"div.rn.f64"}},
    {"unary - float", FLOAT "local x = -g" KEEP, {"neg.ftz.f32"}},
    {"fma", FLOAT "local x = k.fma(f, g, g)" KEEP, {"fma.rn.ftz.f32"}},
    {"fma f64", "local a = k.convert(k.f64, p.cap_in)\nlocal x = k.fma(a, a, a)" KEEP, {"fma.rn.f64"}},
    {"eq ne", INTEGER "local x = k.eq(i, j) | k.ne(i, 7)" KEEP_CONDITION, {"setp.eq.s32", "setp.ne.s32"}},
    {"lt", INTEGER "local x = k.lt(i, j)" KEEP_CONDITION, {"setp.lt.s32"}},
    {"le", INTEGER "local x = k.le(i, j)" KEEP_CONDITION, {"setp.gt.s32|setp.le.s32"}},
    {"gt ge", INTEGER "local x = k.gt(i, j) & k.ge(j, 5)" KEEP_CONDITION, {"setp.gt.s32", "setp.gt.s32|setp.ge.s32"}},
    {"ult", INTEGER "local x = k.ult(i, j)" KEEP_CONDITION, {"setp.lt.u32"}},
    {"float lt", FLOAT "local x = k.lt(f, g)" KEEP_CONDITION, {"setp.lt.ftz.f32|setp.gt.ftz.f32"}},
    {"float eq", FLOAT "local x = k.eq(f, g)" KEEP_CONDITION, {"setp.eq.ftz.f32"}},
    {"float ne: NaN differs", FLOAT "local x = k.ne(f, g)" KEEP_CONDITION, {"setp.neu.ftz.f32"}},
    {"is_nan", FLOAT "local x = k.is_nan(g)" KEEP_CONDITION, {"setp.nan.ftz.f32"}},
    {"select", FLOAT "local x = k.select(k.lt(k.tid(), 5), f, g)" KEEP, {"selp.f32"}},
    {"min max", INTEGER "local x = k.max(k.min(i, j), 0)" KEEP, {"min.s32", "max.s32"}},
    {"min max float", FLOAT "local x = k.max(k.min(f, g), 0.5)" KEEP, {"min.ftz.f32", "max.ftz.f32"}},
    {"max_nan", FLOAT "local x = k.max_nan(f, g)" KEEP, {"max.NaN.ftz.f32|max.ftz.NaN.f32"}},
    {"abs", INTEGER "local x = k.abs(i)" KEEP, {"abs.s32"}},
    {"abs float", FLOAT "local x = k.abs(g)" KEEP, {"abs.ftz.f32"}},
    {"exp2", FLOAT "local x = k.exp2(g)" KEEP, {"ex2.approx.ftz.f32"}},
    {"log2", FLOAT "local x = k.log2(g)" KEEP, {"lg2.approx.ftz.f32"}},
    {"rcp", FLOAT "local x = k.rcp(g)" KEEP, {"rcp.rn.ftz.f32"}},
    {"rcp_approx", FLOAT "local x = k.rcp_approx(g)" KEEP, {"rcp.approx.ftz.f32"}},
    {"sqrt", FLOAT "local x = k.sqrt(g)" KEEP, {"sqrt.rn.ftz.f32"}},
    {"sqrt f64", "local x = k.sqrt(k.convert(k.f64, p.cap_in))" KEEP, {"sqrt.rn.f64"}},
    {"convert sext", INTEGER "local x = k.convert(k.i64, i)" KEEP, {"cvt.s64.s32|ld.param.s32"}},
    {"convert trunc", "local x = k.convert(k.i32, p.capacity)" KEEP, {"st.global.u32"}},
    {"zext", INTEGER "local x = k.zext(k.i64, i)" KEEP, {"cvt.u64.u32|ld.param.u32"}},
    {"zext i1", INTEGER "local x = k.zext(k.i32, k.lt(i, j))" KEEP, {"selp.u32|selp.b32"}},
    {"convert to float", INTEGER "local x = k.convert(k.f32, i)" KEEP, {"cvt.rn.f32.s32"}},
    {"convert to int", FLOAT "local x = k.convert(k.i32, g)" KEEP, {"cvt.rzi.ftz.s32.f32|cvt.rzi.s32.f32"}},
    {"convert to bf16",
     FLOAT "local x = k.convert(k.bf16, g)" KEEP,
     {"cvt.rn.bf16.f32", "st.global.b16|st.global.u16"}},
    {"convert to f16", FLOAT "local x = k.convert(k.f16, g)" KEEP, {"cvt.rn.f16.f32"}},
    {"convert from bf16",
     "local x = k.convert(k.f32, k.load(k.bf16, p.bias, 0))" KEEP,
     {"shl.b32|mov.b32|prmt", "!cvt"}},
    {"convert from f16", "local x = k.convert(k.f32, k.load(k.f16, p.bias, 0))" KEEP, {"cvt.f32.f16|cvt.ftz.f32.f16"}},
    {"convert f64", "local x = k.convert(k.f32, k.load(k.f64, p.zy, 0))" KEEP, {"cvt.rn.f32.f64|cvt.rn.ftz.f32.f64"}},
    {"bitcast", FLOAT "local x = k.bitcast(k.i32, f * g) & 255" KEEP, {"and.b32"}},
    {"loop",
     "local x = k.loop(0, p.depth, 2, k.const(k.f32, 1.0), function(i, s) return s * p.cap_in end)" KEEP,
     {"bra", "mul.rn.ftz.f32"}},
    {"while_",
     "local x = k.while_(p.depth, function(n) return k.gt(n, 3) end, function(n) return n // 3 end)" KEEP,
     {"bra"}},
    {"when", "k.when(k.eq(k.tid(), 3), function() k.store(p.part, 0, p.cap_in) end)", {"setp.ne.s32", "st.global.f32"}},
    {"branch",
     INTEGER
     "local x = k.branch(k.lt(i, j), function() return k.load(k.i32, p.count, 0) end, function() return i end)" KEEP,
     {"ld.global.u32"}},
    {"exit_if", "k.exit_if(k.ge(k.tid(), p.depth))\nk.store(p.part, k.tid(), p.cap_in)", {"ret;"}},
    {"tid ctaid nctaid", "local x = k.tid() + k.ctaid() * k.nctaid()" KEEP, {"%tid.x", "%ctaid.x", "%nctaid.x"}},
    {"lane warp", "local x = k.lane() * k.warp()" KEEP, {"%laneid", "shr.u32"}},
    {"tid is not negative", "local x = k.tid() // 4" KEEP, {"shr.u32", "!shr.s32"}},
    {"load const", "local x = k.load(k.f32, p.zy, p.capacity, {const = true})" KEEP, {"ld.global.nc.f32"}},
    {"load store widths",
     "k.store(p.part, 0, k.load(k.i8, p.zy, 3))\nk.store(p.part, 9, k.load(k.i64, p.zy, 3))",
     {"ld.global.u8 |ld.global.u8\t", "+3]", "ld.global.u64", "+24]"}},
    {"load ptr", "local x = k.load(k.i32, k.load(k.ptr, p.zy, 0), 0)" KEEP, {"ld.global.u64", "ld.global.u32"}},
    {"offset", "local x = k.load(k.i32, k.offset(p.zy, 20), 0)" KEEP, {"+20]"}},
    {"load_vector bf16",
     "local x = k.load_vector(k.bf16, 8, p.hidden, k.tid())" KEEP_ARRAY,
     {"ld.global.v4.u32|ld.global.v4.b32", "mul.wide.u32|shl.b64|mul.wide.s32"}},
    {"load_vector f32",
     "local x = k.load_vector(k.f32, 4, p.zy, k.tid(), {const = true})" KEEP_ARRAY,
     {"ld.global.nc.v4.f32"}},
    {"store_vector f32", FLOAT "k.store_vector(p.part, k.tid(), {f, g, g, f})", {"st.global.v4.f32"}},
    {"store_vector f16",
     FLOAT "local h = k.convert(k.f16, g)\nk.store_vector(p.part, k.tid(), {h, h, h, h})",
     {"st.global.v2.u32|st.global.v2.b32"}},
    {"vector of one word", "k.store_vector(p.part, 1, k.load_vector(k.i8, 4, p.zy, 2))", {"+8]", "+4]"}},
    {"is_null", "local x = k.is_null(p.bias)" KEEP_CONDITION, {"setp.eq.s64|setp.ne.s64"}},
    {"atomic_add", "k.atomic_add(p.count, 0, k.tid())", {"atom.global.add.u32|red.global.add.u32"}},
    {"atomic_max", "k.atomic_max(p.count, 0, k.tid())", {"atom.global.max.s32|red.global.max.s32"}},
    {"atomic_add gives", "k.store(p.count, 1, k.atomic_add(p.count, 0, k.tid()))", {"atom.global.add.u32"}},
    {"shared", "local x = k.shared()" KEEP, {".extern .shared .align 128 .b8 flp_shared[]"}},
    {"shared_load", "local x = k.shared_load(k.f32, k.shared() + 4)" KEEP, {"ld.shared.f32"}},
    {"shared_load_vector",
     "local x = k.shared_load_vector(k.f32, 2, k.shared() + 8)" KEEP_ARRAY,
     {"ld.shared.v2.f32 {%f"}},
    {"shared_load_vector i32",
     "local x = k.shared_load_vector(k.i32, 4, k.shared())" KEEP_ARRAY,
     {"ld.shared.v4.b32 {%r"}},
    {"shared_store_vector",
     "local x = k.load_vector(k.f32, 4, p.zy, k.tid())\nk.shared_store_vector(k.shared(), x)\n"
     "k.shared_store_vector(k.shared() + 16, {p.depth, p.bands})",
     {"st.shared.v4.f32 [%r", "st.shared.v2.b32 [%r"}},
    {"shared all types",
     "for _, t in ipairs {k.i8, k.i16, k.i32, k.i64, k.f16, k.bf16, k.f32, k.f64} do\n"
     "k.shared_store(k.shared() + 64, k.shared_load(t, k.shared()))\nend",
     {"ld.shared.b8", "st.shared.b16", "st.shared.b64", "st.shared.f64"}},
    {"shared_atomic_or", "k.shared_atomic_or(k.shared() + 8, p.depth)", {"red.relaxed.cta.shared.or.b32 [%r"}},
    {"barrier", "k.barrier()", {"bar.sync"}},
    {"warp_sync", "k.warp_sync()", {"bar.warp.sync 0xffffffff"}},
    {"shuffle_xor", FLOAT "local x = k.shuffle_xor(g, 2)" KEEP, {"shfl.sync.bfly.b32", ", 2, 31, -1;"}},
    {"shuffle_up", INTEGER "local x = k.shuffle_up(i, 1)" KEEP, {"shfl.sync.up.b32", ", 1, 0, -1;"}},
    {"shuffle_idx", INTEGER "local x = k.shuffle_idx(i, 0)" KEEP, {"shfl.sync.idx.b32", ", 0, 31, -1;"}},
    {"ballot popcount",
     "local x = k.popcount(k.ballot(k.lt(k.tid(), p.depth)))" KEEP,
     {"vote.sync.ballot.b32", "popc.b32"}},
    {"any", "local x = k.any(k.lt(k.tid(), p.depth))" KEEP_CONDITION, {"vote.sync.any.pred"}},
    {"copy_async16", "k.copy_async16(k.shared(), p.hidden, 16)", {"cp.async.cg.shared.global [", "], 16;"}},
    {"copy_async16 partly", "k.copy_async16(k.shared(), p.hidden, p.depth)", {"], 16, %r"}},
    {"copy_commit copy_wait", "k.copy_commit()\nk.copy_wait(2)", {"cp.async.commit_group;", "cp.async.wait_group 2;"}},
    {"ldmatrix", "local x = k.ldmatrix(k.shared())" KEEP_ARRAY, {"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {"}},
    {"ldmatrix_trans",
     "local x = k.ldmatrix_trans(k.shared())" KEEP_ARRAY,
     {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {"}},
    {"mma bf16",
     "local a = k.ldmatrix(k.shared())\nlocal x = k.mma('bf16', a, {a[1], a[2]}, {0.0, 0.0, p.cap_in, 1})" KEEP_ARRAY,
     {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"}},
    {"mma fp16",
     "local a = k.ldmatrix(k.shared())\nlocal x = k.mma('fp16', a, {a[1], a[2]}, {0.0, 0.0, p.cap_in, 1})" KEEP_ARRAY,
     {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"}},
    {"mma tf32",
     "local a = k.ldmatrix(k.shared())\nlocal x = k.mma('tf32', a, {a[1], a[2]}, {0.0, 0.0, p.cap_in, 1})" KEEP_ARRAY,
     {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"}},
    {"pack", FLOAT "local x = k.pack(k.bf16, f, g)" KEEP, {"cvt.rn.bf16x2.f32"}},
    {"pack f16", FLOAT "local x = k.pack(k.f16, f, g)" KEEP, {"cvt.rn.f16x2.f32"}},
    {"reread_tid", "local x = k.reread_tid() + k.tid()" KEEP, {"mov.u32 %r"}},
    {"reread_ctaid", "local x = k.reread_ctaid()" KEEP, {", %ctaid.x;"}},
    {"const", "local x = k.const(k.i32, -7) * p.depth" KEEP, {", -7;"}},
    {"numbers meet values", "local x = (p.cap_in + 1) * 2.5" KEEP, {"0f3F800000", "0f40200000"}},
};

/* pattern: alternatives divided by '|' */
static bool stands_in(const char *ptx, const char *pattern) {
  char copy[256];
  snprintf(copy, sizeof copy, "%s", pattern);
  for (char *rest = copy, *one = strsep(&rest, "|"); one; one = strsep(&rest, "|"))
    if (strstr(ptx, one)) return true;
  return false;
}

Test(gen_words, each_gives_its_instruction) {
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const word_case *c = &cases[i];
    flpgen_result result;
    char error[512];
    flp_status status = gen_case_body(c->body, &result, error);
    cr_expect_eq(status, FLP_OK, "%s: %s", c->word, error);
    if (status != FLP_OK) continue;
    for (int n = 0; n < 4 && c->patterns[n]; n++) {
      const char *pattern = c->patterns[n];
      bool wanted = pattern[0] != '!';
      cr_expect_eq(stands_in(result.ptx, pattern + !wanted), wanted, "%s: %s\n%s", c->word, pattern, result.ptx);
    }
    flpgen_result_clear(&result);
  }
}

Test(gen_words, ptxas_takes_each) {
  if (!gen_case_ptxas()) cr_skip_test("no ptxas");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flpgen_result result;
    char error[512], report[4096];
    cr_assert_eq(gen_case_body(cases[i].body, &result, error), FLP_OK, "%s: %s", cases[i].word, error);
    int status = gen_case_assemble(result.ptx, result.ptx_bytes, "sm_80", report, sizeof report);
    cr_expect_eq(status, 0, "%s: %s\n%s", cases[i].word, report, result.ptx);
    cr_expect_not_null(strstr(report, "0 bytes stack frame"), "%s: %s", cases[i].word, report);
    flpgen_result_clear(&result);
  }
}

/* The first source of cvt.x2 goes to the upper half, so the call hands over (high, low). */
Test(gen_words, pack_puts_its_first_argument_low) {
  flpgen_result result;
  char error[512];
  const char *body =
      "local low, high = k.load(k.f32, p.zy, 0), k.load(k.f32, p.zy, 100)\n"
      "k.store(p.part, 0, k.pack(k.bf16, low, high))";
  cr_assert_eq(gen_case_body(body, &result, error), FLP_OK, "%s", error);
  char low[16], high[16], packed[64];
  const char *at = strstr(result.ptx, "+400];");
  cr_assert_not_null(at);
  while (strncmp(at, "ld.global", 9) != 0) at--;
  cr_assert_eq(sscanf(at, "ld.global.f32 %15[^,],", high), 1);
  for (at = result.ptx; strstr(at, "ld.global.f32"); at++) {
    at = strstr(at, "ld.global.f32");
    cr_assert_eq(sscanf(at, "ld.global.f32 %15[^,],", low), 1);
    if (strcmp(low, high) != 0) break;
  }
  snprintf(packed, sizeof packed, ", %s, %s;", high, low);
  cr_expect_not_null(strstr(strstr(result.ptx, "cvt.rn.bf16x2.f32"), packed), "%s in %s", packed, result.ptx);
  flpgen_result_clear(&result);
}

/* Two constants give a constant, and integer identities vanish: no instruction is left in the IR as built. */
Test(gen_words, constants_fold_while_building) {
  flpgen_result result;
  char error[512];
  const char *body =
      "local c = k.const(k.i32, 6)\nlocal x = (p.depth * 1 + 0) | 0\n"
      "k.store(p.count, (c * 7 - 2) // 4, (0 + x) // 1)";
  cr_assert_eq(gen_case_body(body, &result, error), FLP_OK, "%s", error);
  cr_expect_null(strstr(result.ir, " mul "));
  cr_expect_null(strstr(result.ir, " add "));
  cr_expect_null(strstr(result.ir, " sdiv "));
  cr_expect_not_null(strstr(result.ir, "i64 10"), "%s", result.ir);
  cr_expect_not_null(strstr(result.ir, "store i32 %depth"), "%s", result.ir);
  flpgen_result_clear(&result);
}

/* Every operation on every type that it takes: LLVM must lower them all, for what it cannot lower ends the process. */
static const char all_types[] =
    "local at = 0\n"
    "local function keep(x)\n"
    "  at = at + 1\n"
    "  if x.type == k.i1 then x = k.zext(k.i8, x) end\n"
    "  k.store(p.part, k.convert(k.i64, k.tid()) + at * 256, x)\n"
    "end\n"
    "local function read(type) at = at + 1; return k.load(type, p.zy, k.convert(k.i64, k.tid()) + at * 256) end\n"
    "local integers, floats = {k.i8, k.i16, k.i32, k.i64}, {k.f32, k.f64}\n"
    "local all = {k.i8, k.i16, k.i32, k.i64, k.f16, k.bf16, k.f32, k.f64, k.ptr}\n"
    "for _, t in ipairs(integers) do\n"
    "  local a, b = read(t), read(t)\n"
    "  for _, x in ipairs {a + b, a - b, a * b, a // b, a % b, a & b, a | b, a ~ b, a << 3, a >> 3, -a, ~a, a // 7, a "
    "% 8,\n"
    "    k.udiv(a, b), k.urem(a, b), k.lshr(a, 3), k.min(a, b), k.max(a, b), k.abs(a)} do keep(x) end\n"
    "  for _, word in ipairs {'eq', 'ne', 'lt', 'le', 'gt', 'ge', 'ult'} do keep(k[word](a, b)) end\n"
    "  for _, u in ipairs(integers) do keep(k.convert(u, a)); keep(k.zext(k.i64, a)) end\n"
    "  for _, u in ipairs(floats) do keep(k.convert(u, a)); keep(k.convert(t, read(u))) end\n"
    "end\n"
    "for _, t in ipairs(floats) do\n"
    "  local a, b = read(t), read(t)\n"
    "  for _, x in ipairs {a + b, a - b, a * b, a / b, -a, k.min(a, b), k.max(a, b), k.abs(a), k.fma(a, b, a), "
    "k.sqrt(a),\n"
    "    k.is_nan(a)} do keep(x) end\n"
    "  for _, word in ipairs {'eq', 'ne', 'lt', 'le', 'gt', 'ge'} do keep(k[word](a, b)) end\n"
    "  for _, u in ipairs(floats) do keep(k.convert(u, a)) end\n"
    "end\n"
    "for _, t in ipairs {k.f16, k.bf16} do keep(k.convert(t, read(k.f32))); keep(k.convert(k.f32, read(t))) end\n"
    "for _, n in ipairs {1.5, 1 / 0, -1 / 0, 0 / 0, -0.0, 1e-42} do\n"
    "  for _, t in ipairs {k.f16, k.bf16, k.f32, k.f64} do keep(k.const(t, n)) end\n"
    "end\n"
    "for _, t in ipairs(all) do\n"
    "  local a, b, few = read(t), read(t), k.lt(k.tid(), p.depth)\n"
    "  keep(k.select(few, a, b))\n"
    "  keep(k.branch(few, function() return read(t) end, function() return b end))\n"
    "  keep(k.loop(0, p.depth, 1, a, function(i, s) return k.select(k.eq(i, 5), b, s) end))\n"
    "  k.shared_store(k.shared(), a); keep(k.shared_load(t, k.shared() + 8))\n"
    "  for _, n in ipairs {1, 2, 4, 8, 16} do\n"
    "    local bytes = n * (({i8 = 1, i16 = 2, f16 = 2, bf16 = 2, i32 = 4, f32 = 4})[tostring(t)] or 8)\n"
    "    if bytes <= 16 then k.store_vector(p.part, 5, k.load_vector(t, n, p.zy, k.tid())) end\n"
    "  end\n"
    "end\n"
    "local ends = k.while_({k.const(k.i1, true), p.depth}, function(s) return s[1] end,\n"
    "  function(s) return {k.gt(s[2], 9), s[2] - 1} end)\n"
    "keep(ends[1]); keep(ends[1] & ~ends[1] | k.lt(k.tid(), 4) ~ ends[1])\n"
    "keep(k.bitcast(k.i16, read(k.bf16))); keep(k.bitcast(k.f16, read(k.i16))); keep(k.bitcast(k.i64, p.zy))\n"
    "keep(k.bitcast(k.f64, read(k.i64))); keep(k.load(k.i8, k.bitcast(k.ptr, p.capacity), 0))\n";

Test(gen_words, every_type_is_lowered) {
  static const char *const arches[] = {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"};
  for (size_t i = 0; i < sizeof arches / sizeof arches[0]; i++) {
    flpgen_result result;
    char error[512], report[4096];
    gen_case_arch = arches[i];
    cr_assert_eq(gen_case_body(all_types, &result, error), FLP_OK, "%s: %s", arches[i], error);
    if (!gen_case_ptxas()) cr_skip_test("no ptxas");
    cr_expect_eq(gen_case_assemble(result.ptx, result.ptx_bytes, arches[i], report, sizeof report), 0, "%s", report);
    flpgen_result_clear(&result);
  }
}
