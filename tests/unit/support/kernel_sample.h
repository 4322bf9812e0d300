/* kernel_sample.h: sound kernels, descriptors and scratch directories for the tests of keys, descriptors and cache. */
#ifndef FLP_TEST_KERNEL_SAMPLE_H
#define FLP_TEST_KERNEL_SAMPLE_H

#include "runtime/store/store.h"

/* A key that uses every field that its kind may use. */
flp_kernel_key sample_key(flp_kernel_kind kind);

/* A descriptor of that kind that flp_kernel_desc_read accepts, with this build's source hash. */
flp_kernel_desc sample_desc(flp_kernel_kind kind);

/* An image with ptx_bytes of text that depends on seed. Free with flp_kernel_image_clear. */
flp_kernel_image sample_image(flp_kernel_kind kind, size_t ptx_bytes, unsigned seed);

/* 1 if two images are equal in every byte that is stored. */
int sample_image_equal(const flp_kernel_image *a, const flp_kernel_image *b);

/* Makes an empty directory, mode 0700, in the build's scratch folder, which configuring the build empties. */
const char *sample_directory(void);

/* Counts the names in a directory that contain part. */
int sample_count(const char *directory, const char *part);

#endif
