
enum { @PREFIX@_VOCABULARY = @VOCABULARY@, @PREFIX@_CONTEXT = @CONTEXT@ };

/* The two, for callers that do not read this file. */
__attribute__((visibility("default")))
int @NAME@_vocabulary(void);
__attribute__((visibility("default")))
int @NAME@_context(void);

/* The keys and values of texts. */
typedef struct @NAME@_cache @NAME@_cache;

/* Make room for `texts` texts of up to `positions` tokens each; they are empty at first. */
__attribute__((visibility("default")))
int @NAME@_cache_open(@NAME@_model *model, int64_t texts, int64_t positions, @NAME@_cache **cache);

/* Free a cache; NULL is allowed. Close caches before their model. */
__attribute__((visibility("default")))
void @NAME@_cache_close(@NAME@_cache *cache);

/* Append tokens to texts in one step: prompts of any length, and single tokens.
 *
 * `counts` has a number for each text of the cache, 0 for one that waits; `tokens` are those of all
 * texts, one text after another. `logits` gets @PREFIX@_VOCABULARY floats for each text that got
 * tokens, in their order: the scores of what follows its last token. After an error no text has
 * grown. */
__attribute__((visibility("default")))
int @NAME@_append(@NAME@_cache *cache, const int64_t *tokens, const int64_t *counts,
@INDENT@float *logits);

/* Return the number of tokens of a text, -1 if there is no such text. */
__attribute__((visibility("default")))
int64_t @NAME@_length(const @NAME@_cache *cache, int64_t text);

/* Cut a text to its first `length` tokens. */
__attribute__((visibility("default")))
int @NAME@_truncate(@NAME@_cache *cache, int64_t text, int64_t length);
