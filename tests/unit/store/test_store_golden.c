/* test_store_golden.c: what a kernel cache finds, makes, refuses and leaves, by tests/golden/store. Paths are below a
 * fresh folder, where @KEY stands for the name of that key's files; after a command come the warnings that it gave.
 *
 *   > new                      a fresh folder, no cache open
 *   > open WRITABLE READ-ONLY  a cache; - is none, read-only ones are divided by :
 *   > put KEY SEED             keeps an image of the seed; "other" behind it: one of other sources, "fixed": of sources
 *                              that never change
 *   > into DIRECTORY KEY SEED  the same in a directory
 *   > find KEY                 the seed of what is found
 *   > make KEY                 gets it, or makes that of seed 1; "fails" behind it: makes it half
 *   > code SEED                keeps machine code of a kernel, for capability 9.0; with the same words behind it
 *   > prefer                   own entries first
 *   > each                     all entries
 *   > collect BYTES            throws out rubbish, then the oldest entries
 *   > file PATH TEXT           writes a file
 *   > do WORD ...              mkdir, chmod, link, fifo, rename, unlink, rmdir, age, umask or cd
 *   > lock DIRECTORY KEY       takes the key's lock; > unlock: gives it back
 *   > ls DIRECTORY             names, modes and sizes; > bytes DIRECTORY: names and hashes as they are */
#include <criterion/criterion.h>
#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/store/internal.h"
#include "tests/unit/support/replay.h"
#include "tests/unit/support/store_fixture.h"

enum { WORDS = 4, KEYS = 32 };

static struct {
  char root[256];
  char keys[KEYS][32];
  flp_store *store;
  FILE *out;
  int lock;
} scene;

/* A text, with the folder and the files of keys as they are called here. */
static void print_plain(const char *text) {
  while (*text) {
    char path[FIXTURE_PATH_BYTES];
    size_t i = 0, root = strlen(scene.root);
    while (i < KEYS && strncmp(text, fixture_path("", scene.keys[i], "", path) + 1, STORE_HEX) != 0) i++;
    if (i < KEYS) {
      fprintf(scene.out, "@%s", scene.keys[i]);
      text += STORE_HEX;
    } else if (strncmp(text, scene.root, root) == 0) {
      fputs("ROOT", scene.out);
      text += root;
    } else {
      fputc(*text++, scene.out);
    }
  }
  fputc('\n', scene.out);
}

static void print_failure(flp_status status) {
  if (status == FLP_OK) return;
  fprintf(scene.out, "%s: ", flp_status_name(status));
  print_plain(flp_error_detail());
}

static void on_log(flp_log_level level, const char *message, void *user) {
  (void)user;
  if (level != FLP_LOG_WARNING) return;
  fputs("warning: ", scene.out);
  print_plain(message);
}

static const char *key_of(const char *key) {
  size_t i = 0;
  while (scene.keys[i][0] && strcmp(scene.keys[i], key) != 0) cr_assert_lt(++i, KEYS);
  snprintf(scene.keys[i], sizeof scene.keys[i], "%s", key);
  return scene.keys[i];
}

/* A path below the folder; one that begins with / or "./" stays, and none is NULL. */
static char *path_of(const char *word, char out[FIXTURE_PATH_BYTES]) {
  char key[32], directory[512], suffix[32] = "";
  if (!word || strcmp(word, "-") == 0) return NULL;
  if (*word == '/' || strncmp(word, "./", 2) == 0) return strcpy(out, word);
  const char *at = strchr(word, '@');
  snprintf(out, FIXTURE_PATH_BYTES, "%s/%.500s", scene.root, word);
  if (!at) return out;
  sscanf(at, "@%31[a-z]%31s", key, suffix);
  snprintf(directory, sizeof directory, "%s/%.*s", scene.root, (int)(at - word) % 200, word);
  directory[strlen(directory) - 1] = 0;
  return fixture_path(directory, key_of(key), suffix, out);
}

static void close_store(void) {
  flp_store_close(scene.store);
  scene.store = NULL;
}

static void begin(char **words) {
  (void)words;
  close_store();
  umask(022);
  snprintf(scene.root, sizeof scene.root, "%s", sample_directory());
}

static void open_store(char **words) {
  char writable[FIXTURE_PATH_BYTES], path[FIXTURE_PATH_BYTES], list[4 * FIXTURE_PATH_BYTES] = "";
  close_store();
  char *rest = words[1] && strcmp(words[1], "-") != 0 ? words[1] : NULL;
  int has_list = rest != NULL;
  for (char *word; (word = strsep(&rest, ":"));) {
    if (*word) strcat(list, path_of(word, path));
    if (rest) strcat(list, ":");
  }
  flp_log_set(on_log, NULL);
  print_failure(flp_store_open(path_of(words[0], writable), has_list ? list : NULL, &scene.store));
}

static void change_sources(flp_kernel_image *image, const char *how) {
  uint8_t *sources = image->desc.sources;
  if (how && strcmp(how, "other") == 0) sources[0] ^= 1;
  for (int i = 0; how && strcmp(how, "fixed") == 0 && i < 32; i++) sources[i] = (uint8_t)(5 * i);
}

static void put(char **words) {
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 5000, (unsigned)atoi(words[1]));
  change_sources(&image, words[2]);
  print_failure(flp_store_put(scene.store, key_of(words[0]), strlen(words[0]), &image));
  flp_kernel_image_clear(&image);
}

/* A head of an ELF file for CUDA is all that the code of a kernel must be. */
static void keep_code(char **words) {
  flp_kernel_image image = sample_image(FLP_KERNEL_ROWS, 100, (unsigned)atoi(words[0]));
  Elf64_Ehdr head = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB}, .e_machine = 190};
  change_sources(&image, words[1]);
  image.cubin = memcpy(malloc(sizeof head), &head, sizeof head);
  image.cubin_bytes = sizeof head;
  flp_store_set_device(scene.store, 90, 13000);
  flp_store_keep_cubin(scene.store, &image);
  flp_kernel_image_clear(&image);
}

static void put_into(char **words) {
  char path[FIXTURE_PATH_BYTES];
  fixture_put_in(path_of(words[0], path), key_of(words[1]), (unsigned)atoi(words[2]));
  flp_log_set(on_log, NULL);
}

static void find(char **words) {
  flp_kernel_image got;
  int found = -1;
  unsigned seed = 0;
  print_failure(flp_store_get(scene.store, key_of(words[0]), strlen(words[0]), &got, &found));
  for (int is_it = 0; found && !is_it;) {
    flp_kernel_image want = sample_image(FLP_KERNEL_FORWARD, 5000, ++seed);
    cr_assert_lt(seed, 100, "an image of no seed");
    is_it = sample_image_equal(&got, &want);
    flp_kernel_image_clear(&want);
  }
  fprintf(scene.out, found ? "seed %u\n" : "nothing\n", seed);
  flp_kernel_image_clear(&got);
}

static flp_status make_one(void *context, flp_kernel_image *out) {
  ++*(int *)context;
  *out = sample_image(FLP_KERNEL_FORWARD, 5000, 1);
  return FLP_OK;
}

/* A maker that fails half-way. */
static flp_status make_half(void *context, flp_kernel_image *out) {
  make_one(context, out);
  return flp_fail(FLP_ERROR_COMPILE, "forward.lua:7: no");
}

static void make(char **words) {
  flp_kernel_image got, want = sample_image(FLP_KERNEL_FORWARD, 5000, 1);
  int calls = 0, made = -1;
  const char *key = key_of(words[0]);
  flp_store_make_fn maker = words[1] ? make_half : make_one;
  flp_status status = flp_store_get_or_make(scene.store, key, strlen(key), 1000, maker, &calls, &got, &made);
  print_failure(status);
  if (status == FLP_OK) cr_expect(sample_image_equal(&got, &want) && calls == made && flp_error_detail()[0] == 0);
  else cr_expect(!got.ptx && !made && calls == 1);
  if (status == FLP_OK) fputs(made ? "made\n" : "was there\n", scene.out);
  flp_kernel_image_clear(&got);
  flp_kernel_image_clear(&want);
}

static void take_lock(char **words) {
  char path[FIXTURE_PATH_BYTES], hex[STORE_HEX + 1];
  int directory = open(path_of(words[0], path), O_RDONLY | O_DIRECTORY);
  store_entry_name(key_of(words[1]), strlen(words[1]), hex);
  store_lock_take(directory, hex, 0, &scene.lock);
  cr_assert_geq(scene.lock, 0);
  close(directory);
}

static void release_lock(char **words) {
  (void)words;
  store_lock_release(scene.lock);
}

static void prefer(char **words) {
  (void)words;
  flp_store_prefer_writable(scene.store);
}

static int print_item(void *context, const flp_store_item *item) {
  (void)context;
  fprintf(scene.out, "%s %s %s%s %llu bytes: ", item->writable ? "own" : "read-only",
          item->status == FLP_OK ? "sound" : "bad", item->key[0] ? "key " : "", item->key,
          (unsigned long long)item->bytes);
  cr_expect(item->status != FLP_OK || llabs(item->modified - (int64_t)time(NULL)) <= 60);
  char text[2 * FIXTURE_PATH_BYTES];
  snprintf(text, sizeof text, "%s %s", item->file, item->reason);
  print_plain(text);
  return 1;
}

static void each_entry(char **words) {
  (void)words;
  print_failure(flp_store_each(scene.store, print_item, NULL));
}

static void collect(char **words) {
  uint64_t files = 0, bytes = 0;
  print_failure(flp_store_collect(scene.store, words[0] ? strtoull(words[0], NULL, 10) : UINT64_MAX, &files, &bytes));
  fprintf(scene.out, "%llu files, %llu bytes\n", (unsigned long long)files, (unsigned long long)bytes);
}

static void write_file(char **words) {
  char path[FIXTURE_PATH_BYTES];
  fixture_write_file(path_of(words[0], path), words[1] ? words[1] : "", words[1] ? strlen(words[1]) : 0);
}

static void change(char **words) {
  char one[FIXTURE_PATH_BYTES], other[FIXTURE_PATH_BYTES];
  const char *word = words[0], *path = path_of(words[1], one), *more = words[2];
  int failed = strcmp(word, "mkdir") == 0    ? mkdir(path, 0700)
               : strcmp(word, "chmod") == 0  ? chmod(path, (mode_t)strtoul(more, NULL, 8))
               : strcmp(word, "link") == 0   ? symlink(path_of(more, other), path)
               : strcmp(word, "fifo") == 0   ? mkfifo(path, 0600)
               : strcmp(word, "rename") == 0 ? rename(path, path_of(more, other))
               : strcmp(word, "unlink") == 0 ? unlink(path)
               : strcmp(word, "rmdir") == 0  ? rmdir(path)
               : strcmp(word, "cd") == 0     ? chdir(path)
               : strcmp(word, "umask") == 0  ? (umask((mode_t)strtoul(words[1], NULL, 8)), 0)
               : strcmp(word, "age") == 0    ? (fixture_make_old(path, atol(more)), 0)
                                             : -1;
  cr_assert_eq(failed, 0, "%s %s", word, words[1]);
}

/* What print does of each entry of a directory but "..". */
static void list_with(const char *directory, void (*print)(const char *path, const char *name)) {
  char path[FIXTURE_PATH_BYTES], name[2 * FIXTURE_PATH_BYTES];
  struct dirent **names;
  path_of(directory, path);
  int count = scandir(path, &names, NULL, alphasort);
  if (count < 0) fputs("no such directory\n", scene.out);
  for (int i = 0; i < count; i++) {
    snprintf(name, sizeof name, "%s/%s", path, names[i]->d_name);
    if (strcmp(names[i]->d_name, "..") != 0) print(name, names[i]->d_name);
    free(names[i]);
  }
  if (count >= 0) free(names);
}

static void print_entry(const char *path, const char *name) {
  char line[2 * FIXTURE_PATH_BYTES];
  struct stat info;
  cr_assert_eq(lstat(path, &info), 0);
  unsigned mode = (unsigned)info.st_mode & 07777;
  if (S_ISREG(info.st_mode)) snprintf(line, sizeof line, "%04o %lld %s", mode, (long long)info.st_size, name);
  else snprintf(line, sizeof line, "%04o %s, no file", mode, name);
  print_plain(line);
}

static void list(char **words) {
  list_with(words[0], print_entry);
}

static void print_hash(const char *path, const char *name) {
  uint8_t bytes[8192], digest[STORE_DIGEST];
  char hex[STORE_HEX + 1];
  FILE *file = fopen(path, "r");
  size_t length = file ? fread(bytes, 1, sizeof bytes, file) : 0;
  cr_assert_not_null(file);
  fclose(file);
  if (length == 0) return; /* the directory itself */
  crypto_hash_sha256(digest, bytes, length);
  fprintf(scene.out, "%s: %s\n", name, sodium_bin2hex(hex, sizeof hex, digest, sizeof digest));
}

static void list_bytes(char **words) {
  list_with(words[0], print_hash);
}

static void run(void *context, const char *command, const char *given, FILE *out) {
  (void)context;
  static const struct {
    const char *name;
    void (*run)(char **words);
  } commands[] = {{"new", begin},       {"open", open_store}, {"put", put},       {"into", put_into},
                  {"find", find},       {"make", make},       {"prefer", prefer}, {"each", each_entry},
                  {"collect", collect}, {"file", write_file}, {"do", change},     {"ls", list},
                  {"code", keep_code},  {"lock", take_lock},  {"unlock", release_lock}, {"bytes", list_bytes}};
  char *text = strdup(given), *rest = text, *words[WORDS + 1] = {0};
  for (int i = 0; i < WORDS && rest && *rest; i++) words[i] = strsep(&rest, " ");
  scene.out = out;
  size_t i = 0;
  while (strcmp(commands[i].name, command) != 0) cr_assert_lt(++i, sizeof commands / sizeof commands[0], "%s", command);
  commands[i].run(words);
  free(text);
}

static void each(const char *name, void *context) {
  replay_file(name, 1, run, context);
  close_store();
}

Test(store_golden, is_as_it_was) {
  replay_each("store", 4, each, NULL);
}
