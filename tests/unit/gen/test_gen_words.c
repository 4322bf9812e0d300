/* test_gen_words.c: the instructions that each word of the language becomes, by tests/golden/words. */
#include "tests/unit/support/gen_replay.h"

Test(gen_words, each_is_as_it_was) {
  replay_each("words", 3, gen_replay_file, NULL);
}
