/* emit.c: the LLVM side of one generation: context, module, verification, passes and PTX.
 *
 * The passes simplify and share, no more: a Lua `for` has unrolled what is to be unrolled, and lanes are threads, so
 * there is nothing to vectorise. Floats are left as written: no fast-math flag, no contraction. */
#include "gen/target/emit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <llvm-c/Analysis.h>
#include <llvm-c/Error.h>
#include <llvm-c/Target.h>
#include <llvm-c/Transforms/PassBuilder.h>

#include "gen/lang/types.h"
#include "gen/target/arch.h"

static const char triple[] = "nvptx64-nvidia-cuda";
/* No loop-invariant code motion: hoisting every address of a main loop costs the registers that its 128 accumulators
 * need (dz bf16, 128x256 tile: 222 registers and no spills without it, 255 and 656 bytes of spills with it), and ptxas
 * hoists by its own count of registers anyway. */
static const char pipeline[] =
    "function(early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,loop-mssa(loop-rotate),gvn,"
    "instcombine<no-verify-fixpoint>,simplifycfg,adce)"; /* a fixpoint not reached would end the process */

/* What a generation may take. Measured: 24 MB for the kernels of a training step of a 151936 x 4096 head on sm_90a. */
enum { GENERATION_BYTES = 64 << 20 };

/* LLVM ends the process where memory runs out, so a limit of the process's memory is met before LLVM is. */
static int has_memory(void) {
  void *probe = mmap(NULL, GENERATION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return 0;
  munmap(probe, GENERATION_BYTES);
  return 1;
}

static void initialise_target(void) {
  LLVMInitializeNVPTXTargetInfo();
  LLVMInitializeNVPTXTarget();
  LLVMInitializeNVPTXTargetMC();
  LLVMInitializeNVPTXAsmPrinter();
}

/* Keeps the first error; LLVM's own handler would print or end the process. */
static void keep_diagnostic(LLVMDiagnosticInfoRef info, void *user) {
  gen_state *g = user;
  if (LLVMGetDiagInfoSeverity(info) != LLVMDSError || g->diagnostic[0]) return;
  char *text = LLVMGetDiagInfoDescription(info);
  snprintf(g->diagnostic, sizeof g->diagnostic, "%s", text);
  LLVMDisposeMessage(text);
}

flp_status gen_emit_open(gen_state *g) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (!has_memory()) return FLP_ERROR_MEMORY;
  pthread_once(&once, initialise_target);
  g->context = LLVMContextCreate();
  LLVMContextSetDiagnosticHandler(g->context, keep_diagnostic, g);
  g->module = LLVMModuleCreateWithNameInContext(flp_kernel_kind_name(g->key->kind), g->context);
  LLVMSetTarget(g->module, triple);
  g->builder = LLVMCreateBuilderInContext(g->context);
  gen_types_init(g);
  return FLP_OK;
}

void gen_emit_close(gen_state *g) {
  if (g->builder) LLVMDisposeBuilder(g->builder);
  if (g->module) LLVMDisposeModule(g->module);
  if (g->context) LLVMContextDispose(g->context);
}

/* Copies LLVM's text into memory that free() takes. */
static char *copy_message(char *message) {
  char *copy = message ? strdup(message) : NULL;
  LLVMDisposeMessage(message);
  return copy;
}

static flp_status verify(gen_state *g, char *error, size_t capacity) {
  char *message = NULL;
  LLVMBool bad = LLVMVerifyModule(g->module, LLVMReturnStatusAction, &message);
  if (bad) snprintf(error, capacity, "%s: LLVM rejects the module: %s", flp_kernel_kind_name(g->key->kind), message);
  LLVMDisposeMessage(message);
  return bad ? FLP_ERROR_COMPILE : FLP_OK;
}

static LLVMTargetMachineRef create_machine(gen_state *g, char *error, size_t capacity) {
  LLVMTargetRef target;
  char *message = NULL;
  if (LLVMGetTargetFromTriple(triple, &target, &message)) {
    snprintf(error, capacity, "LLVM: %s", message);
    LLVMDisposeMessage(message);
    return NULL;
  }
  LLVMTargetMachineRef machine =
      LLVMCreateTargetMachine(target, triple, g->arch->cpu, g->arch->features, LLVMCodeGenLevelAggressive,
                              LLVMRelocDefault, LLVMCodeModelDefault);
  if (!machine) snprintf(error, capacity, "LLVM has no target machine for %s", g->arch->cpu);
  return machine;
}

static flp_status optimise(gen_state *g, LLVMTargetMachineRef machine, char *error, size_t capacity) {
  LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
  LLVMErrorRef failure = LLVMRunPasses(g->module, pipeline, machine, options);
  LLVMDisposePassBuilderOptions(options);
  if (!failure) return FLP_OK;
  char *message = LLVMGetErrorMessage(failure);
  snprintf(error, capacity, "LLVM's passes failed: %s", message);
  LLVMDisposeErrorMessage(message);
  return FLP_ERROR_COMPILE;
}

static flp_status emit_ptx(gen_state *g, LLVMTargetMachineRef machine, flpgen_result *out, char *error,
                           size_t capacity) {
  LLVMMemoryBufferRef buffer = NULL;
  char *message = NULL;
  if (LLVMTargetMachineEmitToMemoryBuffer(machine, g->module, LLVMAssemblyFile, &message, &buffer)) {
    snprintf(error, capacity, "LLVM cannot emit PTX: %s", message);
    LLVMDisposeMessage(message);
    return FLP_ERROR_COMPILE;
  }
  if (g->diagnostic[0]) {
    snprintf(error, capacity, "LLVM cannot emit PTX: %s", g->diagnostic);
    LLVMDisposeMemoryBuffer(buffer);
    return FLP_ERROR_COMPILE;
  }
  out->ptx_bytes = LLVMGetBufferSize(buffer);
  out->ptx = malloc(out->ptx_bytes + 1);
  if (out->ptx) {
    memcpy(out->ptx, LLVMGetBufferStart(buffer), out->ptx_bytes);
    out->ptx[out->ptx_bytes] = 0;
  }
  LLVMDisposeMemoryBuffer(buffer);
  return out->ptx ? FLP_OK : FLP_ERROR_MEMORY;
}

/* The header, up to .address_size, is the architecture's own where LLVM does not know it. */
static flp_status replace_header(const gen_state *g, flpgen_result *out) {
  if (!g->arch->header) return FLP_OK;
  const char *from = strstr(out->ptx, ".version "), *to = from ? strstr(from, ".address_size") : NULL;
  char *text = NULL;
  int n = to ? asprintf(&text, "%.*s%s%s", (int)(from - out->ptx), out->ptx, g->arch->header, to) : -1;
  if (n < 0) return FLP_ERROR_MEMORY;
  free(out->ptx);
  out->ptx = text, out->ptx_bytes = (size_t)n;
  return FLP_OK;
}

/* The text itself names the PTX version that it needs. */
static flp_status read_version(const char *ptx, flp_kernel_desc *desc, char *error, size_t capacity) {
  const char *at = strstr(ptx, "\n.version ");
  if (at && sscanf(at, " .version %u.%u", &desc->ptx_major, &desc->ptx_minor) == 2) return FLP_OK;
  snprintf(error, capacity, "LLVM's PTX names no version");
  return FLP_ERROR_COMPILE;
}

flp_status gen_emit_run(gen_state *g, const flpgen_options *options, flpgen_result *out, char *error,
                        size_t error_capacity) {
  LLVMTargetMachineRef machine = create_machine(g, error, error_capacity);
  flp_status status = FLP_ERROR_COMPILE;
  if (!machine) return status;
  LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(machine);
  LLVMSetModuleDataLayout(g->module, layout);
  LLVMDisposeTargetData(layout);
  status = verify(g, error, error_capacity);
  if (status != FLP_OK) goto done;
  if (options && (options->want_ir || options->ir_only)) out->ir = copy_message(LLVMPrintModuleToString(g->module));
  if (options && options->ir_only) {
    status = out->ir ? FLP_OK : FLP_ERROR_MEMORY;
    goto done;
  }
  status = optimise(g, machine, error, error_capacity);
  if (status != FLP_OK) goto done;
  if (options && options->want_opt_ir) out->opt_ir = copy_message(LLVMPrintModuleToString(g->module));
  status = emit_ptx(g, machine, out, error, error_capacity);
  if (status == FLP_OK) status = replace_header(g, out);
  if (status == FLP_OK) status = read_version(out->ptx, g->desc, error, error_capacity);
  bool missing = options && ((options->want_ir && !out->ir) || (options->want_opt_ir && !out->opt_ir));
  if (status == FLP_OK && missing) status = FLP_ERROR_MEMORY;
done:
  LLVMDisposeTargetMachine(machine);
  return status;
}
