/* libc_compat.c: functions of newer glibc that Debian's static LLVM and libstdc++ call. Hidden in libflpgen. */
#include <malloc.h>
#include <stdint.h>
#include <sys/random.h>

/* glibc 2.32: no lock is ever left out, which is always right. */
char __libc_single_threaded = 0;

/* glibc 2.36. LLVM makes names of temporary files of it. getrandom fails for so few bytes only where the kernel has no
 * such call (before 3.17, which glibc 2.28 does not run on for long) or a filter forbids it; then the address of a
 * variable has to do. */
uint32_t arc4random(void);
uint32_t arc4random(void) {
  uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) number = (uint32_t)(uintptr_t)&number;
  return number;
}

/* glibc 2.33: mallinfo with wider counters. LLVM prints them in statistics that flp never asks for. */
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
struct mallinfo2 mallinfo2(void) {
  struct mallinfo narrow = mallinfo();
  return (struct mallinfo2){.arena = (unsigned)narrow.arena, .hblkhd = (unsigned)narrow.hblkhd,
                            .uordblks = (unsigned)narrow.uordblks, .fordblks = (unsigned)narrow.fordblks};
}
