/* @TITLE@
 *
 * Written by gptrs. Link with lib@NAME@.so; Python is not needed. Functions return
 * @PREFIX@_OK or a code, and @NAME@_error() says in words what went wrong in this thread last.
 * A model may be used by several threads: its calls wait for each other.
 *
@TENSORS@
 */
#ifndef @PREFIX@_H
#define @PREFIX@_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  @PREFIX@_OK = 0,
  @PREFIX@_ARGUMENT = 1, /* a size, a pointer or a number that cannot be */
  @PREFIX@_MEMORY = 2,   /* the system lacks memory or threads */
  @PREFIX@_FILE = 3,     /* the weights cannot be read, or belong to another library */
  @PREFIX@_VALUE = 4,    /* an element is out of range, such as a token that does not exist */
  @PREFIX@_MACHINE = 5   /* the processor lacks instructions that the library needs */
};

enum { @PREFIX@_INPUTS = @INPUTS@, @PREFIX@_OUTPUTS = @OUTPUTS@, @PREFIX@_MOST_AXES = @AXES@ };

/* Elements in row-major order without gaps; `data` is aligned to an element. */
typedef struct {
  void *data;
  int rank;
  int64_t shape[@PREFIX@_MOST_AXES];
} @NAME@_tensor;

typedef struct @NAME@_model @NAME@_model;

/* Map the weights and start `threads` threads, at most @THREADS@; 0 for all of these. */
__attribute__((visibility("default")))
int @NAME@_open(const char *weights, int threads, @NAME@_model **model);

/* Free a model; NULL is allowed. No call may be running. */
__attribute__((visibility("default")))
void @NAME@_close(@NAME@_model *model);

/* Return the message of the last error in this thread. */
__attribute__((visibility("default")))
const char *@NAME@_error(void);
@CALLS@
#ifdef __cplusplus
}
#endif
#endif
