/* plain.c: words of Hopper and of Blackwell's data-centre GPUs that are one instruction, or a few.
 *
 * A wait is one piece of inline PTX with its loop inside, so that neither LLVM nor ptxas finds a place to move
 * registers while products fly. */
#include <string.h>

#include "gen/lang/call.h"
#include "gen/lang/value.h"
#include "gen/target/arch.h"
#include "gen/target/words.h"

gen_state *gen_building_for(lua_State *L, const char *word, const char *first, const char *second) {
  gen_state *g = gen_building(L, word);
  if (strcmp(g->arch->name, first) != 0 && (!second || strcmp(g->arch->name, second) != 0))
    gen_fail(L, "%s: architecture %s does not have it; %s%s%s", word, g->arch->name, first, second ? " and " : " does",
             second ? lua_pushfstring(L, "%s do", second) : "");
  return g;
}

enum { GIVES = 1 /* an i32 */, BLACKWELL = 2 /* alone has it */ };

typedef struct plain_word {
  const char *name, *text, *constraints;
  const char *arguments; /* i: i32, l: i64, p: ptr, b: i1, handed over as 0 or 1; c, ahead of them: CTAs that multiply
                          * together, 1 or 2, a constant that stands for each %d of the text */
  unsigned facts;
} plain_word;

static const plain_word plain_words[] = {
    {"k.mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", "r,r,~{memory}", "ii", 0},
    {"k.mbarrier_fence", "fence.mbarrier_init.release.cluster;", "~{memory}", "", 0},
    {"k.mbarrier_expect", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r,~{memory}", "ii", 0},
    {"k.mbarrier_wait",
     "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra passed; bra again; passed: }",
     "r,r,~{memory}", "ii", 0},
    {"k.mbarrier_arrive", "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }",
     "r,r,~{memory}", "ib", 0},
    /* With .release.cluster it costs a full memory barrier a stage; what is handed back was only read. */
    {"k.mbarrier_arrive_there",
     "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cluster.b64 _, [$0]; }", "r,r,~{memory}", "ib",
     0},
    {"k.cluster_address", "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", "ii", GIVES},
    {"k.barrier_sync", "bar.sync $0, $1;", "r,r,~{memory}", "ii", 0},
    {"k.barrier_arrive", "bar.arrive $0, $1;", "r,r,~{memory}", "ii", 0},
    {"k.cluster_sync", "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;", "~{memory}", "",
     0},
    {"k.cluster_rank", "mov.u32 $0, %cluster_ctarank;", "=r", "", GIVES},
    {"k.atomic_next", "atom.relaxed.gpu.global.add.u32 $0, [$1], 1;", "=r,l,~{memory}", "p", GIVES},
    {"k.store_there", "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [$0], $1, [$2];", "r,r,r,~{memory}",
     "iii", 0},
    {"k.store_matrix", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};", "r,r,r,r,r,~{memory}",
     "iiiii", 0},
    {"k.proxy_fence", "fence.proxy.async.shared::cta;", "~{memory}", "", 0},
    {"k.tensor_store",
     "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$2, $3}], [$1]; cp.async.bulk.commit_group;",
     "l,r,r,r,~{memory}", "liii", 0},
    {"k.tensor_stores_read", "cp.async.bulk.wait_group.read 0;", "~{memory}", "", 0},
    {"k.uniform", "redux.sync.or.b32 $0, $1, 0xffffffff;", "=r,r", "i", GIVES},
    /* Tensor memory. */
    {"k.tmem_alloc",
     "tcgen05.alloc.cta_group::%d.sync.aligned.shared::cta.b32 [$0], $1; "
     "tcgen05.relinquish_alloc_permit.cta_group::%d.sync.aligned;",
     "r,r,~{memory}", "cii", BLACKWELL},
    {"k.tmem_free", "tcgen05.dealloc.cta_group::%d.sync.aligned.b32 $0, $1;", "r,r,~{memory}", "cii", BLACKWELL},
    {"k.tmem_commit", "tcgen05.commit.cta_group::%d.mbarrier::arrive::one.shared::cluster.b64 [$0];", "r,~{memory}",
     "ci", BLACKWELL},
    {"k.tmem_commit_cast",
     "{ .reg .b16 m; cvt.u16.u32 m, $1; "
     "tcgen05.commit.cta_group::%d.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [$0], m; }",
     "r,r,~{memory}", "cii", BLACKWELL},
    {"k.tmem_before", "tcgen05.fence::before_thread_sync;", "~{memory}", "", BLACKWELL},
    {"k.tmem_after", "tcgen05.fence::after_thread_sync;", "~{memory}", "", BLACKWELL},
};

static LLVMValueRef argument(lua_State *L, int arg, char letter, const char *word) {
  gen_state *g = gen_state_get(L);
  switch (letter) {
    case 'b':
      return LLVMBuildZExt(g->builder, gen_value_of(L, arg, GEN_I1, word), g->types[GEN_I32], "");
    case 'p':
      return gen_value_of(L, arg, GEN_PTR, word);
    case 'l':
      return gen_value_of(L, arg, GEN_I64, word);
    default:
      return gen_value_of(L, arg, GEN_I32, word);
  }
}

static const char *text_of(lua_State *L, const plain_word *w) {
  if (w->arguments[0] != 'c') return w->text;
  int ctas = (int)gen_value_integer(L, 1, 1, 2, w->name);
  return lua_pushfstring(L, w->text, ctas, ctas);
}

static int plain(lua_State *L) {
  const plain_word *w = lua_touserdata(L, lua_upvalueindex(1));
  int is_blackwells = w->facts & BLACKWELL, gives = w->facts & GIVES;
  gen_state *g = gen_building_for(L, w->name, is_blackwells ? "sm_100f" : "sm_90a", is_blackwells ? NULL : "sm_100f");
  const gen_asm text = {text_of(L, w), w->constraints, GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  LLVMValueRef args[5];
  unsigned count = 0;
  for (int i = 0; w->arguments[i]; i++)
    if (w->arguments[i] != 'c') args[count++] = argument(L, i + 1, w->arguments[i], w->name);
  LLVMValueRef result = gen_call_asm(g, &text, gives ? g->types[GEN_I32] : NULL, args, count);
  if (gives) gen_value_push(L, GEN_I32, result);
  return gives != 0;
}

void gen_plain_open(lua_State *L, int words) {
  lua_pushvalue(L, words);
  for (size_t i = 0; i < sizeof plain_words / sizeof plain_words[0]; i++) {
    lua_pushlightuserdata(L, (void *)&plain_words[i]);
    lua_pushcclosure(L, plain, 1);
    lua_setfield(L, -2, plain_words[i].name + 2);
  }
  lua_pop(L, 1);
}
