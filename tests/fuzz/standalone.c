/* standalone.c: main of a harness in a build without libFuzzer: runs files as they are, then mutations of them, the
 * same on every machine.
 *
 *   fuzz_NAME [-runs=N] [-seed=N] [-dict=FILE] FILE|FOLDER...
 *
 * Options are libFuzzer's. The input that ends the process is kept as crash-NAME in the working directory. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"
#include "tests/unit/support/mutation.h"

enum { FILES_MAX = 4096, WORDS_MAX = 512, INPUT_BYTES_MAX = 64 << 10, FILE_BYTES_MAX = 16 << 20 };

typedef struct input {
  uint8_t *bytes;
  size_t length;
} input;

static input files[FILES_MAX], words[WORDS_MAX];
static size_t file_count, word_count;
static input now; /* what the harness has in hand */
static char crash_name[256];

/* ---- what ends the process ---- */

static void keep_input(void) {
  int fd = open(crash_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, now.bytes, now.length) != (ssize_t)now.length) return;
  static const char said[] = "the input is kept; replay: the same program with the file alone: ";
  (void)!write(STDERR_FILENO, said, sizeof said - 1);
  (void)!write(STDERR_FILENO, crash_name, strlen(crash_name));
  (void)!write(STDERR_FILENO, "\n", 1);
  close(fd);
}

static void on_signal(int number) {
  keep_input();
  signal(number, SIG_DFL);
  raise(number);
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void watch(const char *program) {
  const char *slash = strrchr(program, '/');
  snprintf(crash_name, sizeof crash_name, "crash-%.200s", slash ? slash + 1 : program);
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(keep_input);
  static const int signals[] = {SIGILL, SIGTRAP, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM};
  for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
    if (signals[i] != SIGSEGV || !__sanitizer_set_death_callback) signal(signals[i], on_signal);
}

/* In memory of its very length, so that a sanitizer sees a read beyond the end. */
static void run(const uint8_t *bytes, size_t length) {
  uint8_t *exact = malloc(length ? length : 1);
  if (!exact) abort();
  if (length) memcpy(exact, bytes, length);
  now = (input){exact, length};
  LLVMFuzzerTestOneInput(exact, length);
  free(exact);
}

/* ---- files ---- */

static void fail(const char *path, const char *why) {
  fprintf(stderr, "%s: %s\n", path, why);
  exit(2);
}

static input read_file(const char *path) {
  FILE *file = fopen(path, "rbe");
  input read = {malloc(FILE_BYTES_MAX), 0};
  if (!file || !read.bytes) fail(path, strerror(errno));
  read.length = fread(read.bytes, 1, FILE_BYTES_MAX, file);
  if (ferror(file)) fail(path, "cannot read");
  fclose(file);
  return read;
}

static void add_file(const char *path) {
  if (file_count == FILES_MAX) fail(path, "too many files");
  input read = read_file(path);
  uint8_t *fitted = realloc(read.bytes, read.length ? read.length : 1);
  files[file_count++] = (input){fitted ? fitted : read.bytes, read.length};
}

static int by_name(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

static void add(const char *path) {
  struct stat info;
  if (stat(path, &info) != 0) fail(path, strerror(errno));
  if (!S_ISDIR(info.st_mode)) {
    add_file(path);
    return;
  }
  struct dirent **names;
  int count = scandir(path, &names, NULL, by_name);
  if (count < 0) fail(path, strerror(errno));
  for (int i = 0; i < count; i++) {
    char *inner;
    if (names[i]->d_name[0] != '.') {
      if (asprintf(&inner, "%s/%s", path, names[i]->d_name) < 0) abort();
      add(inner);
      free(inner);
    }
    free(names[i]);
  }
  free(names);
}

/* Lines of "text" with \xNN, as libFuzzer has them; what follows '#' is left out. */
static void read_words(const char *path) {
  FILE *file = fopen(path, "re");
  char line[512];
  if (!file) fail(path, strerror(errno));
  while (fgets(line, sizeof line, file) && word_count < WORDS_MAX) {
    const char *from = line[0] == '#' ? NULL : strchr(line, '"');
    const char *end = from ? strrchr(line, '"') : NULL;
    if (!from || end == from) continue;
    input word = {malloc(sizeof line), 0};
    if (!word.bytes) abort();
    for (from++; from < end; from++) {
      unsigned value;
      if (from[0] == '\\' && from[1] == 'x' && sscanf(from + 2, "%2x", &value) == 1) {
        word.bytes[word.length++] = (uint8_t)value;
        from += 3;
      } else {
        from += from[0] == '\\' && from + 1 < end;
        word.bytes[word.length++] = (uint8_t)*from;
      }
    }
    words[word_count++] = word;
  }
  fclose(file);
}

/* ---- mutations ---- */

static void replace(input *at, size_t from, size_t cut, const uint8_t *put, size_t put_length) {
  size_t tail = at->length - from - cut;
  if (from + put_length + tail > INPUT_BYTES_MAX) return;
  memmove(at->bytes + from + put_length, at->bytes + from + cut, tail);
  if (put_length) memcpy(at->bytes + from, put, put_length);
  at->length = from + put_length + tail;
}

static size_t at_most(size_t a, size_t b) {
  return a < b ? a : b;
}

static void put_bytes(input *at, size_t from) {
  static const uint32_t numbers[] = {0, 1, 255, 1024, 0x7fffffff, 0x80000000, 0xffffffff, 0x10000};
  uint32_t number = numbers[draw(8)];
  size_t length = (size_t)1 << draw(3);
  replace(at, from, at_most(draw(2) ? length : 0, at->length - from), (const uint8_t *)&number, length);
}

static void put_word(input *at, size_t from) {
  if (!word_count) return;
  const input *word = &words[draw(word_count)];
  replace(at, from, at_most(draw(2) ? draw(16) : 0, at->length - from), word->bytes, word->length);
}

static void put_piece(input *at, size_t from) {
  const input *other = &files[draw(file_count)];
  if (!other->length) return;
  size_t first = draw(other->length), length = at_most(1 + draw(64), other->length - first);
  replace(at, from, at_most(draw(64), at->length - from), other->bytes + first, length);
}

static void change_byte(input *at, size_t from) {
  if (from < at->length) at->bytes[from] = (uint8_t)(draw(2) ? draw(256) : at->bytes[from] ^ 1u << draw(8));
}

static void cut(input *at, size_t from) {
  replace(at, from, at_most(1 + draw(draw(2) ? 8 : 4096), at->length - from), NULL, 0);
}

static void repeat(input *at, size_t from) {
  uint8_t piece[64];
  size_t length = at_most(1 + draw(sizeof piece), at->length - from);
  memcpy(piece, at->bytes + from, length);
  for (uint64_t times = draw(16); times > 0; times--) replace(at, from, 0, piece, length);
}

static void mutate(input *at) {
  static void (*const ways[])(input *, size_t) = {change_byte, change_byte, put_word, put_bytes,
                                                  put_piece,   cut,         repeat};
  for (uint64_t times = 1 + draw(4); times > 0; times--)
    ways[draw(sizeof ways / sizeof ways[0])](at, at->length ? draw(at->length + 1) : 0);
}

static void run_mutations(long runs) {
  static uint8_t memory[INPUT_BYTES_MAX];
  for (long i = 0; i < runs; i++) {
    const input *seed = &files[draw(file_count)];
    input at = {memory, at_most(seed->length, INPUT_BYTES_MAX)};
    memcpy(memory, seed->bytes, at.length);
    mutate(&at);
    run(at.bytes, at.length);
  }
}

int main(int argc, char **argv) {
  long runs = 0;
  for (int i = 1; i < argc; i++) {
    if (strncmp(argv[i], "-runs=", 6) == 0)
      runs = atol(argv[i] + 6);
    else if (strncmp(argv[i], "-seed=", 6) == 0)
      mutation_state ^= (uint64_t)atoll(argv[i] + 6) << 1;
    else if (strncmp(argv[i], "-dict=", 6) == 0)
      read_words(argv[i] + 6);
    else if (argv[i][0] == '-')
      fail(argv[i], "is none of -runs=N, -seed=N, -dict=FILE");
    else
      add(argv[i]);
  }
  if (!file_count) fail(argv[0], "expected files or folders of them, got none");
  watch(argv[0]);
  run(NULL, 0);
  for (size_t i = 0; i < file_count; i++) run(files[i].bytes, files[i].length);
  run_mutations(runs);
  printf("%zu files, %ld mutations\n", file_count, runs);
  for (size_t i = 0; i < file_count; i++) free(files[i].bytes);
  for (size_t i = 0; i < word_count; i++) free(words[i].bytes);
  return 0;
}
