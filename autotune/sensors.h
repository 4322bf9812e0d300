/* sensors.h: clock and power of a GPU through NVML, opened with dlopen; absent where the library is. */
#ifndef FLP_AUTOTUNE_SENSORS_H
#define FLP_AUTOTUNE_SENSORS_H

/* Reads both of the GPU with that PCI address. pci: as cuDeviceGetPCIBusId writes it.
 * unit: MHz of the multiprocessors, W; -1 where unknown. thread: any */
void sensors_read(const char *pci, double *clock_mhz, double *power_w);

#endif
