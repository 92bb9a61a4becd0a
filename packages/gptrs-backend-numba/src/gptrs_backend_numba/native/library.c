/* The runtime of a library that gptrs has written: see @NAME@.h.
 *
 * Kernels are called as numba calls functions: status as the value, the result and an exception
 * through the first two pointers. A nonzero status can only mean a lack of memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "@NAME@.h"

/* A word that holds an address in a storage: base + offset, or base + the size in a slot. */
struct use { int32_t word, slot; int64_t offset; };
struct storage { int32_t space, index, first, count; };
struct pair { int32_t word, other; };
struct call { int32_t word, depends_on_values; const char *origin; };
struct type { int32_t rank, bytes, first; };
struct feature { const char *name; uint32_t leaf, subleaf; int32_t reg, bit; uint64_t state; };
enum { INPUT, WEIGHT, RESULT, SCRATCH };
enum { SUM, PRODUCT, FLOORDIV, LEAST, GREATEST, SELECT };

/* A schedule for the sizes that its guards accept, as data: the words that a run interprets, and
 * what is written to them. The slots of symbols come first. */
struct program {
  const int64_t *first_words, *first_slots, *size_code, *weight_offsets;
  const struct pair *geometries, *kernel_words, *slot_kernels, *symbol_sources, *sized;
  const struct storage *storages;
  const struct use *uses;
  const struct type *input_types, *output_types;
  const struct call *calls;
  const int32_t *states, *dim_slots, *guard_slots, *output_inputs;
  const char *const *guard_words;
  int words, slots, code, geometry_count, kernel_count, slot_kernel_count, symbols, sized_count, storage_count,
      call_count, state_count, guards, scratch_slot, begin;
};

#include "weights.h"
#include "@NAME@_data.h"

/* The words and sizes of a program in a process. */
struct instance { int64_t *words, *slots; int is_sized; };

struct @NAME@_model {
  struct instance instances[PROGRAMS];
  int64_t *state;               /* of the threads, see STATE_WORDS */
  pthread_t *workers;
  int threads;
  pthread_mutex_t lock;
  const char *weights;
  size_t weights_size;
  char *scratch;
  int64_t scratch_size;
};

static _Thread_local char message[512];

static int failed(int code, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(message, sizeof message, format, list);
  va_end(list);
  return code;
}

#define REQUIRE(pointer, name) \
  if (!(pointer)) return failed(@PREFIX@_ARGUMENT, "`%s` must not be NULL", name)

const char *@NAME@_error(void) { return message; }

/* The processor. */

#if defined(__x86_64__)
static uint64_t enabled_state(void) {
  uint32_t eax, edx, a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (uint64_t)edx << 32 | eax;
}

static int require_processor(void) {
  uint64_t state = enabled_state();
  for (int i = 0; i < FEATURES; i++) {
    const struct feature *each = &features[i];
    uint32_t found[4] = {0};
    int known = __get_cpuid_count(each->leaf, each->subleaf, &found[0], &found[1], &found[2],
                                  &found[3]);
    if (!known || !(found[each->reg] >> each->bit & 1) || (state & each->state) != each->state)
      return failed(@PREFIX@_MACHINE, "the library needs a processor with %s", each->name);
  }
  /* Linux wants to be asked once before a process uses the tiles of AMX. */
  if (NEEDS_TILES && syscall(SYS_arch_prctl, 0x1023, 18))
    return failed(@PREFIX@_MACHINE, "the system does not let this process use AMX");
  return 0;
}
#elif defined(__aarch64__)
static int require_processor(void) {
  for (int i = 0; i < FEATURES; i++)
    if (!(getauxval(features[i].leaf) >> features[i].bit & 1))
      return failed(@PREFIX@_MACHINE, "the library needs a processor with %s", features[i].name);
  return 0;
}
#endif

/* Asked by a library that has code for several kinds of processors. */
int @NAME@_fits(void);
int @NAME@_fits(void) { return !require_processor(); }

/* The weights: a file that is mapped, so that processes share it. */

static int map_weights(@NAME@_model *model, const char *path) {
  char head[64] = {0};
  struct stat found;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return failed(@PREFIX@_FILE, "cannot open %s: %s", path, strerror(errno));
  ssize_t got = pread(file, head, sizeof head, 0);
  if (fstat(file, &found) || got != (ssize_t)sizeof head || memcmp(head, DIGEST, 32)) {
    close(file);
    return failed(@PREFIX@_FILE, "%s does not have the weights of this library", path);
  }
  if (found.st_size != WEIGHT_BYTES) {
    close(file);
    return failed(@PREFIX@_FILE, "%s has %lld bytes, %lld are needed", path,
                  (long long)found.st_size, (long long)WEIGHT_BYTES);
  }
  void *mapped = mmap(NULL, found.st_size, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED)
    return failed(@PREFIX@_MEMORY, "cannot map %s: %s", path, strerror(errno));
  model->weights = mapped;
  model->weights_size = found.st_size;
  return 0;
}

/* The threads: they wait in compiled code, and sleep where nothing comes for a while. */

struct worker { int64_t state, number; };

static void *work(void *given) {
  struct worker own = *(struct worker *)given;
  int64_t result;
  void *exception;
  free(given);
  WORKER(&result, &exception, own.state, own.number);
  return NULL;
}

static void stop_workers(@NAME@_model *model) {
  int64_t result;
  void *exception;
  if (!model->threads) return;
  STOP(&result, &exception, (int64_t)model->state);
  for (int i = 0; i < model->threads; i++) pthread_join(model->workers[i], NULL);
}

static int start_workers(@NAME@_model *model, int threads) {
  if (threads < 1 || threads > THREADS) threads = THREADS;
  model->workers = calloc(threads, sizeof *model->workers);
  if (!model->workers) return failed(@PREFIX@_MEMORY, "no memory for %d threads", threads);
  for (int i = 1; i < threads; i++) {
    struct worker *own = malloc(sizeof *own);
    if (own) *own = (struct worker){(int64_t)model->state, i};
    if (!own || pthread_create(&model->workers[i - 1], NULL, work, own)) {
      free(own);
      return failed(@PREFIX@_MEMORY, "the system gives no %d threads", threads);
    }
    model->threads = i;
  }
  return 0;
}

/* Addresses and sizes in the words of a schedule. */

static void move(const struct program *p, struct instance *to, const struct storage *at,
                 const char *base) {
  for (int i = at->first; i < at->first + at->count; i++) {
    int64_t offset = p->uses[i].slot < 0 ? p->uses[i].offset : to->slots[p->uses[i].slot];
    to->words[p->uses[i].word] = (int64_t)base + offset;
  }
}

static void move_all(const struct program *p, struct instance *to, int space, int index,
                     const char *base) {
  for (int i = 0; i < p->storage_count; i++)
    if (p->storages[i].space == space && p->storages[i].index == index)
      move(p, to, &p->storages[i], base);
}

static void compute_sizes(const struct program *p, int64_t *slot) {
  const int64_t *code = p->size_code, *end = code + p->code;
  while (code < end) {
    int64_t *to = &slot[code[1]];
    if (code[0] == SUM) {
      int64_t total = code[2];
      for (int64_t i = 0; i < code[3]; i++) total += code[4 + 2 * i] * slot[code[5 + 2 * i]];
      *to = total;
      code += 4 + 2 * code[3];
      continue;
    }
    int64_t a = slot[code[2]], b = slot[code[3]];
    switch (code[0]) {
      case PRODUCT: *to = a * b; break;
      case LEAST: *to = a < b ? a : b; break;
      case GREATEST: *to = a > b ? a : b; break;
      case SELECT: *to = a >= 0 ? b : slot[code[4]]; break;
      default:
        if (b) *to = a / b - (a % b != 0 && (a < 0) != (b < 0)); /* rounded down */
    }
    code += code[0] == SELECT ? 5 : 4;
  }
}

/* Take the sizes of a call from its inputs, and check these. */
static int take_sizes(const struct program *p, const @NAME@_tensor *inputs, int64_t *slot) {
  memcpy(slot, p->first_slots, p->slots * sizeof *slot);
  for (int i = 0; i < p->slot_kernel_count; i++)
    slot[p->slot_kernels[i].word] = (int64_t)kernels[p->slot_kernels[i].other];
  for (int i = 0; i < INPUTS; i++)
    if (inputs[i].rank != p->input_types[i].rank)
      return failed(@PREFIX@_ARGUMENT, "input `%s` must have %d axes, got %d", input_names[i],
                    p->input_types[i].rank, inputs[i].rank);
  for (int i = 0; i < p->symbols; i++) {
    const struct pair *from = &p->symbol_sources[i];
    slot[i] = inputs[from->word].shape[from->other];
    if (slot[i] < 1 || slot[i] > LARGEST_SIZE)
      return failed(@PREFIX@_ARGUMENT, "input `%s`: axis %d has the size %lld",
                    input_names[from->word], from->other, (long long)slot[i]);
  }
  compute_sizes(p, slot);
  for (int i = 0; i < INPUTS; i++)
    for (int axis = 0; axis < p->input_types[i].rank; axis++) {
      int64_t wanted = slot[p->dim_slots[p->input_types[i].first + axis]];
      if (inputs[i].shape[axis] != wanted)
        return failed(@PREFIX@_ARGUMENT, "input `%s`: axis %d must have the size %lld, got %lld",
                      input_names[i], axis, (long long)wanted, (long long)inputs[i].shape[axis]);
    }
  for (int i = 0; i < p->guards; i++)
    if (slot[p->guard_slots[i]] < 0)
      return failed(@PREFIX@_ARGUMENT, "the library does not serve these sizes: %s is needed",
                    p->guard_words[i]);
  return 0;
}

/* Return the number of the program for a call, -1 with a message if there is none. */
static int choose(const @NAME@_tensor *inputs, int64_t *slot) {
  /* The first program is the general one: its message is the one that remains. */
  for (int i = PROGRAMS - 1; i >= 0; i--)
    if (!take_sizes(&programs[i], inputs, slot)) return i;
  return -1;
}

static void take_shapes(const struct program *p, const int64_t *slot, @NAME@_tensor *outputs) {
  for (int i = 0; i < OUTPUTS; i++) {
    outputs[i].rank = p->output_types[i].rank;
    for (int axis = 0; axis < outputs[i].rank; axis++)
      outputs[i].shape[axis] = slot[p->dim_slots[p->output_types[i].first + axis]];
  }
}

static int check_data(const struct program *p, const @NAME@_tensor *inputs,
                      const @NAME@_tensor *outputs) {
  for (int i = 0; i < INPUTS; i++)
    if (!inputs[i].data || (uintptr_t)inputs[i].data % p->input_types[i].bytes)
      return failed(@PREFIX@_ARGUMENT, "input `%s` has no aligned data", input_names[i]);
  for (int i = 0; i < OUTPUTS; i++)
    if (p->output_inputs[i] < 0 &&
        (!outputs[i].data || (uintptr_t)outputs[i].data % p->output_types[i].bytes))
      return failed(@PREFIX@_ARGUMENT, "output `%s` has no aligned memory", output_names[i]);
  return 0;
}

static int prepare(@NAME@_model *model, const struct program *p, struct instance *to,
                   const int64_t *slot) {
  if (!to->is_sized || memcmp(slot, to->slots, p->slots * sizeof *slot)) {
    memcpy(to->slots, slot, p->slots * sizeof *slot);
    for (int i = 0; i < p->sized_count; i++)
      to->words[p->sized[i].word] = slot[p->sized[i].other];
    for (int i = 0; i < p->storage_count; i++)
      if (p->storages[i].space == WEIGHT)
        move(p, to, &p->storages[i], model->weights + p->weight_offsets[p->storages[i].index]);
    to->is_sized = 1;
  }
  int64_t needed = slot[p->scratch_slot];
  if (needed <= model->scratch_size) return 0;
  void *larger = NULL;
  if (posix_memalign(&larger, 64, needed))
    return failed(@PREFIX@_MEMORY, "no memory for %lld bytes of intermediate results",
                  (long long)needed);
  free(model->scratch);
  model->scratch = larger;
  model->scratch_size = needed;
  return 0;
}

static int run(@NAME@_model *model, const @NAME@_tensor *inputs, @NAME@_tensor *outputs) {
  int64_t slot[MOST_SLOTS];
  int number = choose(inputs, slot);
  if (number < 0) return @PREFIX@_ARGUMENT;
  const struct program *p = &programs[number];
  struct instance *to = &model->instances[number];
  int code = check_data(p, inputs, outputs);
  if (!code) code = prepare(model, p, to, slot);
  if (code) return code;
  take_shapes(p, slot, outputs);
  for (int i = 0; i < OUTPUTS; i++)
    if (p->output_inputs[i] >= 0) outputs[i].data = inputs[p->output_inputs[i]].data;
  move_all(p, to, SCRATCH, 0, model->scratch);
  for (int i = 0; i < INPUTS; i++) move_all(p, to, INPUT, i, inputs[i].data);
  for (int i = 0; i < OUTPUTS; i++) move_all(p, to, RESULT, i, outputs[i].data);
  int64_t position = 0;
  void *exception;
  int32_t status = RUN(&position, &exception, (int64_t)to->words, (int64_t)p->begin,
                                   INT64_MAX);
  if (!status && !position) return 0;
  for (int i = 0; i < p->call_count; i++)
    if (p->calls[i].word == -1 - position && p->calls[i].depends_on_values)
      return failed(@PREFIX@_VALUE, "`%s` got a value that is out of its range",
                    p->calls[i].origin);
  return failed(@PREFIX@_MEMORY, "a kernel found no memory for its work");
}

void @NAME@_close(@NAME@_model *model) {
  if (!model) return;
  stop_workers(model);
  if (model->weights) munmap((void *)model->weights, model->weights_size);
  pthread_mutex_destroy(&model->lock);
  for (int i = 0; i < PROGRAMS; i++) {
    free(model->instances[i].words);
    free(model->instances[i].slots);
  }
  free(model->workers);
  free(model->state);
  free(model->scratch);
  free(model);
}

static int new_instance(@NAME@_model *model, const struct program *p, struct instance *to) {
  to->words = malloc(p->words * sizeof(int64_t));
  to->slots = calloc(p->slots, sizeof(int64_t));
  if (!to->words || !to->slots) return failed(@PREFIX@_MEMORY, "no memory for a program");
  memcpy(to->words, p->first_words, p->words * sizeof(int64_t));
  for (int i = 0; i < p->geometry_count; i++)
    to->words[p->geometries[i].word] = (int64_t)(to->words + p->geometries[i].other);
  for (int i = 0; i < p->kernel_count; i++)
    to->words[p->kernel_words[i].word] = (int64_t)kernels[p->kernel_words[i].other];
  for (int i = 0; i < p->state_count; i++) to->words[p->states[i]] = (int64_t)model->state;
  return 0;
}

int @NAME@_open(const char *weights, int threads, @NAME@_model **opened) {
  REQUIRE(opened, "model");
  *opened = NULL;
  REQUIRE(weights, "weights");
  int code = require_processor();
  if (code) return code;
  @NAME@_model *model = calloc(1, sizeof *model);
  if (!model) return failed(@PREFIX@_MEMORY, "no memory for a model");
  pthread_mutex_init(&model->lock, NULL);
  void *state = NULL;
  if (posix_memalign(&state, 64, 8 * STATE_WORDS))
    code = failed(@PREFIX@_MEMORY, "no memory for a model");
  else
    model->state = memset(state, 0, 8 * STATE_WORDS);
  for (int i = 0; !code && i < PROGRAMS; i++)
    code = new_instance(model, &programs[i], &model->instances[i]);
  if (!code) code = map_weights(model, weights);
  if (!code) code = start_workers(model, threads);
  if (code)
    @NAME@_close(model);
  else
    *opened = model;
  return code;
}
