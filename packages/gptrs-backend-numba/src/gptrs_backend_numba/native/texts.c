
/* The cache of a language model: each text owns its pages of every pool, in order. */

int @NAME@_vocabulary(void) { return VOCABULARY; }

int @NAME@_context(void) { return CONTEXT; }

struct @NAME@_cache {
  @NAME@_model *model;
  int64_t texts, most, width;   /* most tokens and pages of a text */
  int64_t *lengths;
  char *pools[POOLS];
  int64_t *tokens, *positions;  /* room for the rows of a step */
  int32_t *slots, *tables, *row_starts, *ends;
  int64_t room;
};

void @NAME@_cache_close(@NAME@_cache *cache) {
  if (!cache) return;
  for (int i = 0; i < POOLS; i++) free(cache->pools[i]);
  free(cache->lengths);
  free(cache->tokens);
  free(cache->positions);
  free(cache->slots);
  free(cache->tables);
  free(cache->row_starts);
  free(cache->ends);
  free(cache);
}

/* Return the size of an axis that is the same in all calls. */
static int64_t static_dim(const struct type *type, int axis) {
  return programs[0].first_slots[programs[0].dim_slots[type->first + axis]];
}

static int64_t pool_bytes(int pool, int64_t pages) {
  const struct type *type = &programs[0].input_types[FIRST_POOL + pool];
  int64_t bytes = pages * type->bytes;
  for (int axis = 1; axis < type->rank; axis++) bytes *= static_dim(type, axis);
  return bytes;
}

int @NAME@_cache_open(@NAME@_model *model, int64_t texts, int64_t positions, @NAME@_cache **opened) {
  REQUIRE(opened, "cache");
  *opened = NULL;
  REQUIRE(model, "model");
  if (texts < 1 || texts > MOST_TEXTS || positions < 1 || positions > CONTEXT)
    return failed(@PREFIX@_ARGUMENT, "a cache has 1 to %d texts of 1 to %d positions, got %lld of %lld",
                  MOST_TEXTS, CONTEXT, (long long)texts, (long long)positions);
  @NAME@_cache *cache = calloc(1, sizeof *cache);
  if (!cache) return failed(@PREFIX@_MEMORY, "no memory");
  cache->model = model;
  cache->texts = texts;
  cache->most = positions;
  cache->width = (positions + PAGE - 1) / PAGE;
  if (texts * cache->width * PAGE > INT32_MAX) { /* slots are int32 */
    @NAME@_cache_close(cache);
    return failed(@PREFIX@_ARGUMENT, "a cache has at most %d positions, got %lld texts of %lld",
                  INT32_MAX, (long long)texts, (long long)positions);
  }
  cache->lengths = calloc(texts, sizeof(int64_t));
  cache->row_starts = calloc(texts + 1, sizeof(int32_t));
  cache->ends = calloc(texts, sizeof(int32_t));
  cache->tables = calloc(texts * cache->width, sizeof(int32_t));
  int whole = cache->lengths && cache->row_starts && cache->ends && cache->tables;
  for (int i = 0; i < POOLS; i++) {
    /* Memory that is never written to takes none from the system. */
    cache->pools[i] = calloc(1, pool_bytes(i, texts * cache->width));
    whole = whole && cache->pools[i];
  }
  if (!whole) {
    @NAME@_cache_close(cache);
    return failed(@PREFIX@_MEMORY, "no memory for the keys and values of %lld positions",
                  (long long)(texts * positions));
  }
  *opened = cache;
  return 0;
}

int64_t @NAME@_length(const @NAME@_cache *cache, int64_t text) {
  return !cache || text < 0 || text >= cache->texts ? -1 : cache->lengths[text];
}

int @NAME@_truncate(@NAME@_cache *cache, int64_t text, int64_t length) {
  REQUIRE(cache, "cache");
  if (text < 0 || text >= cache->texts || length < 0 || length > cache->lengths[text])
    return failed(@PREFIX@_ARGUMENT, "text %lld cannot be cut to %lld positions", (long long)text,
                  (long long)length);
  if (length && length < cache->lengths[text] && !REWINDS)
    return failed(@PREFIX@_ARGUMENT, "texts of this model have a state: they can only be cut to 0");
  cache->lengths[text] = length;
  return 0;
}

static int make_room(@NAME@_cache *cache, int64_t rows) {
  if (rows <= cache->room) return 0;
  int64_t *tokens = realloc(cache->tokens, rows * sizeof(int64_t));
  if (tokens) cache->tokens = tokens;
  int64_t *positions = realloc(cache->positions, rows * sizeof(int64_t));
  if (positions) cache->positions = positions;
  int32_t *slots = realloc(cache->slots, rows * sizeof(int32_t));
  if (slots) cache->slots = slots;
  if (!tokens || !positions || !slots)
    return failed(@PREFIX@_MEMORY, "no memory for a step of %lld tokens", (long long)rows);
  cache->room = rows;
  return 0;
}

/* Check a step, and return the number of its texts and rows. */
static int measure(const @NAME@_cache *cache, const int64_t *tokens, const int64_t *counts,
                   int64_t *texts, int64_t *rows) {
  *texts = *rows = 0;
  for (int64_t text = 0; text < cache->texts; text++) {
    if (counts[text] < 0 || counts[text] > cache->most - cache->lengths[text])
      return failed(@PREFIX@_ARGUMENT, "text %lld has %lld positions, %lld tokens do not fit",
                    (long long)text, (long long)cache->lengths[text], (long long)counts[text]);
    *texts += counts[text] > 0;
    *rows += counts[text];
  }
  if (!*rows) return failed(@PREFIX@_ARGUMENT, "a step needs a token");
  for (int64_t row = 0; row < *rows; row++)
    if (tokens[row] < 0 || tokens[row] >= VOCABULARY)
      return failed(@PREFIX@_ARGUMENT, "token %lld is %lld, there are %d", (long long)row,
                    (long long)tokens[row], VOCABULARY);
  return 0;
}

static void set(@NAME@_tensor *tensor, void *data, int rank, int64_t first, int64_t second) {
  tensor->data = data;
  tensor->rank = rank;
  tensor->shape[0] = first;
  tensor->shape[1] = second;
}

static int append(@NAME@_cache *cache, const int64_t *tokens, const int64_t *counts,
                  float *logits) {
  int64_t texts, rows, row = 0, used = 0;
  int code = measure(cache, tokens, counts, &texts, &rows);
  if (!code) code = make_room(cache, rows);
  if (code) return code;
  /* Wide enough for the longest text of the step, as a runtime makes its tables. */
  int64_t width = 1;
  for (int64_t text = 0; text < cache->texts; text++) {
    int64_t pages = (cache->lengths[text] + counts[text] + PAGE - 1) / PAGE;
    if (counts[text] && pages > width) width = pages;
  }
  memcpy(cache->tokens, tokens, rows * sizeof(int64_t));
  cache->row_starts[0] = 0;
  for (int64_t text = 0; text < cache->texts; text++) {
    if (!counts[text]) continue;
    for (int64_t page = 0; page < width; page++)
      cache->tables[used * width + page] = (int32_t)(text * cache->width + page);
    for (int64_t i = 0; i < counts[text]; i++, row++) {
      int64_t position = cache->lengths[text] + i;
      cache->positions[row] = position;
      cache->slots[row] = (int32_t)(text * cache->width * PAGE + position);
    }
    cache->ends[used] = (int32_t)(cache->lengths[text] + counts[text]);
    cache->row_starts[++used] = (int32_t)row;
  }
  @NAME@_tensor inputs[INPUTS], outputs[OUTPUTS];
  memset(inputs, 0, sizeof inputs);
  memset(outputs, 0, sizeof outputs);
  set(&inputs[0], cache->tokens, 1, rows, 0);
  set(&inputs[1], cache->positions, 1, rows, 0);
  set(&inputs[2], cache->row_starts, 1, texts + 1, 0);
  set(&inputs[3], cache->ends, 1, texts, 0);
  for (int group = 0; group < GROUPS; group++) {
    set(&inputs[4 + group], cache->tables, 2, texts, width);
    set(&inputs[4 + GROUPS + group], cache->slots, 1, rows, 0);
  }
  for (int i = 0; i < POOLS; i++) {
    @NAME@_tensor *pool = &inputs[FIRST_POOL + i];
    set(pool, cache->pools[i], programs[0].input_types[FIRST_POOL + i].rank, cache->texts * cache->width, 0);
    for (int axis = 1; axis < pool->rank; axis++)
      pool->shape[axis] = static_dim(&programs[0].input_types[FIRST_POOL + i], axis);
  }
  outputs[0].data = logits;
  code = run(cache->model, inputs, outputs);
  if (code) return code;
  for (int64_t text = 0; text < cache->texts; text++) cache->lengths[text] += counts[text];
  return 0;
}

int @NAME@_append(@NAME@_cache *cache, const int64_t *tokens, const int64_t *counts,
                  float *logits) {
  REQUIRE(cache, "cache");
  REQUIRE(tokens, "tokens");
  REQUIRE(counts, "counts");
  REQUIRE(logits, "logits");
  /* The model's lock guards its caches, too: calls of one cache wait for each other. */
  pthread_mutex_lock(&cache->model->lock);
  int code = append(cache, tokens, counts, logits);
  pthread_mutex_unlock(&cache->model->lock);
  return code;
}
