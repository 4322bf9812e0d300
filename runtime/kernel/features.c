/* features.c: see features.h. */
#include "runtime/kernel/features.h"

#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

static const flp_field_id field_of[] = {
#define FIELD_OF(id, field, keyword, asked) FLP_FIELD_##field,
    FLP_FEATURES(FIELD_OF)
#undef FIELD_OF
};

static const struct {
  flp_feature feature;
  uint32_t others;
  const char *because;
} apart[] = {
#define B(id) | 1u << FLP_FEATURE_##id
#define PAIRS(id, others, because) {FLP_FEATURE_##id, 0 others, because},
    FLP_APART(PAIRS)
#undef PAIRS
#undef B
};

uint32_t flp_features_of(const flp_spec *s) {
  uint32_t features = 0;
#define ASKED(id, field, keyword, asked) features |= (uint32_t)((asked) != 0) << FLP_FEATURE_##id;
  FLP_FEATURES(ASKED)
#undef ASKED
  return features;
}

static flp_status refuse(int feature, int other, const char *because, flp_surface surface) {
  const flp_field *refused = &FLP_SPEC_FIELD[field_of[other]], *beside = &FLP_SPEC_FIELD[field_of[feature]];
  if (surface == FLP_SURFACE_OPTION)
    return flp_fail(FLP_ERROR_ARGUMENT, "--%s: not accepted beside --%s, %s", refused->option, beside->option, because);
  return flp_fail(FLP_ERROR_ARGUMENT, "spec.%s is set beside spec.%s, %s (accepted: 0)", refused->name, beside->name,
                  because);
}

flp_status flp_features_check(const flp_spec *spec, flp_surface surface) {
  uint32_t asked = flp_features_of(spec);
  for (size_t i = 0; i < sizeof apart / sizeof apart[0]; i++)
    for (int other = 0; asked >> apart[i].feature & 1 && other < FLP_FEATURE_NONE; other++)
      if (apart[i].others & asked & 1u << other)
        return refuse((int)apart[i].feature, other, apart[i].because, surface);
  return FLP_OK;
}
