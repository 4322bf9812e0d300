/* fuzz_records.c: any bytes as a tuning record that `flpgen tune` goes on with: refused with a reason, or asked for what
 * an earlier run has found.
 *
 * SQLite finds the file by its name, and puts a journal beside it, so it stands in a folder of its own. */
#include "autotune/records.h"
#include "tests/fuzz/fuzz.h"

static const unsigned REFUSED = FUZZ_BIT(FLP_ERROR_CORRUPT) | FUZZ_BIT(FLP_ERROR_IO);
static char folder[64], path[96], journal[112];

static void remove_folder(void) {
  unlink(journal);
  unlink(path);
  rmdir(folder);
}

static void make_folder(void) {
  const char *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  snprintf(folder, sizeof folder, "%s/flp-fuzz-XXXXXX", memory);
  if (!mkdtemp(folder)) abort();
  snprintf(path, sizeof path, "%s/tune.sqlite", folder);
  snprintf(journal, sizeof journal, "%s-journal", path);
  atexit(remove_folder);
}

static void write_file(const uint8_t *bytes, size_t length) {
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(bytes, 1, length, file) != length || fclose(file) != 0) abort();
  unlink(journal);
}

/* What the rows are asked for: a candidate of the specialisation that the seeds have. */
static void recall(records *file) {
  static const records_run run = {.gpu = "GPU", .sources = "sources", .effort = "quick", .driver = 13000};
  flp_spec head = FLP_SPEC_INIT;
  records_spec spec = {.spec = &head, .text = "V 1000 D 64 bf16", .rows = 1024};
  search_candidate candidate = {.kind = FLP_KERNEL_FORWARD, .tune = {.rows = 64, .columns = 64}};
  char plan[17];
  int found;
  flp_status status = records_find_finished(file, &run, &spec, plan, &found);
  if (status == FLP_OK) status = records_recall(file, &run, &spec, &candidate, &found);
  if (status != FLP_OK) fuzz_expect_refusal(status, REFUSED);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  if (!folder[0]) make_folder();
  write_file(bytes, length);
  records *file = NULL;
  flp_status status = records_open(path, &file);
  if (status == FLP_OK)
    recall(file);
  else
    fuzz_expect_refusal(status, REFUSED);
  records_close(file);
  return 0;
}
