/* api_driver.c: random calls of the whole C API on the CPU, made to run under sanitizers: see --help and api.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/drivers/api.h"

static const char usage[] =
    "usage: api_driver [--seed S] [--tries N] [--first I]\n"
    "\n"
    "Random specs, options, arguments and losses in buffers of exact size: what flp.h accepts is compared with "
    "double,\n"
    "what it does not is refused. A try is a spec and the calls of its plan.\n"
    "  --seed S    of all draws (default 1)\n"
    "  --tries N   default 400\n"
    "  --first I   number of the first try (default 0): with --tries 1 it repeats one that failed\n"
    "\n"
    "exit: 0 nothing was found; 1 a call went wrong; 2 wrong usage\n";

api_counts api_count;
static unsigned long long seed = 1, number;

void api_failed(const char *format, ...) {
  va_list arguments;
  fprintf(stderr, "api_driver: try %llu: ", number);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, "\n  last detail: %s\n  repeat: api_driver --seed %llu --first %llu --tries 1\n", flp_error_detail(),
          seed, number);
  exit(1);
}

/* A refused spec leaves no plan. */
static void refuse(const flp_spec *spec, const flp_options *options, const char *field) {
  flp_plan *plan = (flp_plan *)1;
  flp_status status = flp_plan_create(spec, options, &plan);
  api_count.refused_specs++;
  API_EXPECT(status == FLP_ERROR_ARGUMENT, "a plan with a bad %s: %s", field, flp_status_name(status));
  API_EXPECT(!plan, "a plan with a bad %s: *out is not NULL", field);
  API_EXPECT(strstr(flp_error_detail(), field), "a plan with a bad %s: the detail does not name it", field);
}

static void refuse_some(draw *d, const flp_spec *spec, const flp_options *options) {
  flp_spec bad_spec = *spec;
  flp_options bad_options = *options;
  refuse(&bad_spec, options, api_spoil_spec(d, &bad_spec));
  refuse(spec, &bad_options, api_spoil_options(d, &bad_options));
}

/* A newer program's struct: accepted while what this release lacks is 0. */
static flp_status create_grown(draw *d, const flp_spec *spec, const flp_options *options, flp_plan **plan) {
  size_t bytes = sizeof *spec + 8 * (size_t)(1 + draw_below(d, 4));
  unsigned char *grown = api_block(bytes, 0, 0);
  uint32_t size = (uint32_t)bytes;
  memcpy(grown, spec, sizeof *spec);
  memcpy(grown, &size, sizeof size);
  grown[bytes - 1] = 1;
  refuse((const flp_spec *)(const void *)grown, options, "spec.struct_bytes");
  grown[bytes - 1] = 0;
  return flp_plan_create((const flp_spec *)(const void *)grown, options, plan);
}

static void try_one(draw *d) {
  api_case c = {.d = d};
  api_draw_spec(d, &c.spec, &c.options);
  api_count.specs++;
  refuse_some(d, &c.spec, &c.options);
  flp_status status =
      draw_one_in(d, 8) ? create_grown(d, &c.spec, &c.options, &c.plan) : flp_plan_create(&c.spec, &c.options, &c.plan);
  API_EXPECT(status == FLP_OK && c.plan && !*flp_error_detail(), "flp_plan_create: %s", flp_status_name(status));
  api_count.plans++;
  if (c.spec.loss)
    API_EXPECT(flp_loss_read(c.spec.loss, c.spec.loss_bytes, &c.loss) == FLP_OK, "the driver's own loss");
  if (c.spec.op == FLP_OP_SELECT)
    api_run_select(&c);
  else
    api_run_head(&c);
  api_run_queries(d, c.plan, &c.spec);
  flp_plan_destroy(c.plan);
  api_blocks_free();
}

static unsigned long long read_number(const char *text) {
  char *end;
  unsigned long long value = text ? strtoull(text, &end, 10) : 0;
  if (text && *text >= '0' && *text <= '9' && !*end) return value;
  fprintf(stderr, "api_driver: \"%s\" is no number\n%s", text ? text : "", usage);
  exit(2);
}

int main(int argc, char **argv) {
  unsigned long long first = 0, tries = 400;
  for (int i = 1; i < argc; i += 2) {
    if (strcmp(argv[i], "--help") == 0) return fputs(usage, stdout) < 0;
    unsigned long long *out = strcmp(argv[i], "--seed") == 0    ? &seed
                              : strcmp(argv[i], "--tries") == 0 ? &tries
                              : strcmp(argv[i], "--first") == 0 ? &first
                                                                : NULL;
    if (!out) return fprintf(stderr, "api_driver: \"%s\" is no option\n%s", argv[i], usage), 2;
    *out = read_number(argv[i + 1]);
  }
  for (number = first; number < first + tries; number++) {
    draw d = draw_start(seed, number);
    api_count.tries++;
    try_one(&d);
  }
  printf(
      "api_driver: seed %llu, %ld tries: %ld specs, %ld refused; %ld plans, %ld calls, %ld refused; %ld queries; "
      "%ld values compared\n",
      seed, api_count.tries, api_count.specs + api_count.refused_specs, api_count.refused_specs, api_count.plans,
      api_count.calls + api_count.refused_calls, api_count.refused_calls, api_count.queries, api_count.values);
  return 0;
}
