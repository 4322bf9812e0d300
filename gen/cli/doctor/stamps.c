/* stamps.c: see stamps.h. */
#include "gen/cli/doctor/stamps.h"

#include <time.h>

int doctor_stamps_examine(const flp_device *devices, int count, int driver, doctor_stamp out[DOCTOR_STAMPS_MAX]) {
  const flp_arch *arch;
  int found = 0;
  for (int i = 0; i < count; i++)
    for (int row = 0; (arch = flp_arch_at(row)) && found < DOCTOR_STAMPS_MAX; row++) {
      if (!(arch->facts & FLP_ARCH_UNPROVEN) || !flp_arch_runs(arch, devices[i].major, devices[i].minor)) continue;
      out[found] = (doctor_stamp){.device = i, .arch = arch->name};
      found += flp_unproven_proof(&devices[i], driver, NULL, NULL, arch, &out[found].proof) == FLP_OK;
    }
  return found;
}

json_t *doctor_stamps_json(const doctor_stamp *stamps, int count) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) {
    const flp_proof *proof = &stamps[i].proof;
    json_array_append_new(
        list, json_pack("{s:i, s:s, s:s, s:o, s:o}", "device", stamps[i].device, "arch", stamps[i].arch, "verdict",
                        flp_verdict_name(proof->verdict), "reason",
                        proof->reason[0] ? cli_json_text(proof->reason) : json_null(), "time",
                        proof->verdict ? json_integer((json_int_t)proof->time) : json_null()));
  }
  return list;
}

void doctor_stamps_add(const doctor_stamp *stamps, int count, cli_table *table) {
  for (int i = 0; i < count; i++) {
    const doctor_stamp *stamp = &stamps[i];
    const flp_proof *proof = &stamp->proof;
    char day[32] = "";
    time_t time = (time_t)proof->time;
    struct tm parts;
    if (gmtime_r(&time, &parts)) strftime(day, sizeof day, "%Y-%m-%d", &parts);
    if (proof->verdict == FLP_VERDICT_NONE)
      cli_table_addf(table, "%s\tno\tunproven on GPU %d, off until `flpgen prove --arch %s --device %d` has passed",
                     stamp->arch, stamp->device, stamp->arch, stamp->device);
    else
      cli_table_addf(table, "%s\t%s\t%s on GPU %d on %s%s%s", stamp->arch, proof->reason[0] ? "no" : "ok",
                     flp_verdict_name(proof->verdict), stamp->device, day, proof->reason[0] ? ", so it is off: " : "",
                     proof->reason);
  }
}
