/* validate.h: the checks that stand before every rung; each failure names the field, its value and what is accepted. */
#ifndef FLP_VALIDATE_H
#define FLP_VALIDATE_H

#include "runtime/base/fields.h"
#include "runtime/loss/loss.h"

/* 1 if a step takes a pass for the mean of scores: it is made of the sums that the entropy is made of, so that a
 * resolved spec asks for these, and not in stream mode. */
int flp_spec_passes_for_mean(const flp_spec *spec);

/* Checks a spec and writes its resolved copy (gradient dtypes filled in). error: ARGUMENT */
flp_status flp_spec_resolve(const flp_spec *spec, flp_spec *out);

/* Checks the options and merges the environment (FLP_FORCE, FLP_STRICT, FLP_BUDGET). options may be NULL. */
flp_status flp_options_resolve(const flp_options *options, flp_options *out);

/* Checks args against a resolved spec and writes a resolved copy: strides and shard ranges filled in, size arithmetic
 * checked for overflow, required pointers present, alignment as the spec promises. error: ARGUMENT */
flp_status flp_args_resolve(const flp_spec *spec, const flp_args *args, flp_args *out);

/* Of any call's arguments, error: ARGUMENT. The stride of a matrix: fills it in, and refuses one that is too small or
 * whose rows have more bytes than there are. of_columns: the field of the spec that has how many columns */
flp_status flp_args_check_extent(const char *field, flp_dtype dtype, int64_t rows, const char *of_columns,
                                 int64_t columns, int64_t *stride);
/* That a base is a multiple of so many bytes, a power of two. what: said behind that */
flp_status flp_args_check_base(const char *field, const void *pointer, int64_t unit, const char *what);

/* The same for a call of flp_step, with what its program reads: the other function leaves that to this one. */
flp_status flp_step_resolve(const flp_spec *spec, const flp_loss *loss, const flp_args *args, flp_args *out);

/* The same for a call of flp_select. validate_select.c */
flp_status flp_select_args_resolve(const flp_spec *spec, const flp_select_args *args, flp_select_args *out);
/* The same for a call of flp_diverge. validate_select.c */
flp_status flp_diverge_args_resolve(const flp_spec *spec, const flp_diverge_args *args, flp_diverge_args *out);
/* The same for a call of flp_scale. validate_select.c */
flp_status flp_scale_args_resolve(const flp_spec *spec, const flp_scale_args *args, flp_scale_args *out);

#endif
