/* fuzz_report_json.c: any bytes as a benchmark record or an exported search of `flpgen report`: refused with a reason,
 * or drawn. */
#include "tests/fuzz/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  fuzz_file file = fuzz_file_create(bytes, length);
  fuzz_report(report_bench_read, file.path, FUZZ_BIT(FLP_ERROR_CORRUPT));
  fuzz_file_close(&file);
  return 0;
}
