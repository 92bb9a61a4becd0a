/* Streams text token by token: the likeliest one after each.
 *
 *   cc -O2 example.c -L. -l@NAME@ -Wl,-rpath,'$ORIGIN' -o example
 *   ./example COUNT TOKEN TOKEN ...
 *
 * Tokens are numbers; `gptrs tokenize` turns text into them, and any tokenizer library does.
 */
#include <stdio.h>
#include <stdlib.h>

#include "@NAME@.h"

static int fail(void) {
  fprintf(stderr, "example: %s\n", @NAME@_error());
  return 1;
}

int main(int count, char **words) {
  if (count < 3) {
    fprintf(stderr, "usage: example COUNT TOKEN [TOKEN ...]\n");
    return 2;
  }
  int64_t left = atoll(words[1]), given = count - 2;
  int64_t *prompt = malloc(given * sizeof *prompt);
  float *logits = malloc(@PREFIX@_VOCABULARY * sizeof *logits);
  if (!prompt || !logits) return 1;
  for (int64_t i = 0; i < given; i++) prompt[i] = atoll(words[i + 2]);

  @NAME@_model *model;
  @NAME@_cache *cache;
  if (@NAME@_open("@NAME@.weights", 0, &model)) return fail();
  if (@NAME@_cache_open(model, 1, given + left, &cache)) return fail();

  int64_t next, *tokens = prompt;
  for (; left > 0; left--) {
    if (@NAME@_append(cache, tokens, &given, logits)) return fail();
    next = 0;
    for (int i = 1; i < @PREFIX@_VOCABULARY; i++)
      if (logits[i] > logits[next]) next = i;
    printf("%lld\n", (long long)next);
    fflush(stdout);
    tokens = &next;
    given = 1;
  }
  @NAME@_cache_close(cache);
  @NAME@_close(model);
  free(prompt);
  free(logits);
  return 0;
}
