/* features.h: what a spec asks for beside the usual (fields.h), and what of it does not go together. */
#ifndef FLP_FEATURES_H
#define FLP_FEATURES_H

#include "runtime/base/fields.h"

/* A bit for each flp_feature that a spec asks for. */
uint32_t flp_features_of(const flp_spec *spec);

/* How a surface names features. */
typedef enum flp_surface { FLP_SURFACE_SPEC, FLP_SURFACE_OPTION } flp_surface;

/* Whether what a spec asks for goes together. error: ARGUMENT naming both, and why not */
flp_status flp_features_check(const flp_spec *spec, flp_surface surface);

#endif
