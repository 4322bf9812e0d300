/* hfconfig.h: the head of a language model as a Hugging Face config.json describes it. */
#ifndef FLPGEN_CLI_HFCONFIG_H
#define FLPGEN_CLI_HFCONFIG_H

#include "runtime/flp.h"

typedef struct cli_hfconfig {
  int64_t vocab, hidden;
  flp_dtype dtype; /* 0 if the file has none */
  double softcap;  /* final_logit_softcapping; 0 for none */
  double scale;    /* logit_scale, or 1 / logits_scaling; 1 if the file has none */
} cli_hfconfig;

/* Reads a config. Fields of a nested text model (text_config, llm_config, language_config) stand before those beside
 * it, as in the configs of vision-language models.
 * error: IO, CORRUPT as "PATH: reason" for a file that is not such a config */
flp_status cli_hfconfig_read(const char *path, cli_hfconfig *out);

#endif
