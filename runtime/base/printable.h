/* printable.h: text of files and of other programs, before a terminal sees it. */
#ifndef FLP_BASE_PRINTABLE_H
#define FLP_BASE_PRINTABLE_H

/* Replaces by '?' what a terminal would act on: control characters of ASCII and of UTF-8, line feeds and tabs apart. */
void flp_make_printable(char *text);

#endif
