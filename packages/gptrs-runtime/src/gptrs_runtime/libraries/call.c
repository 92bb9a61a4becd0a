/* Calls the library once, with inputs of zeros, and prints the shapes of its outputs.
 *
 *   cc -O2 example.c -L. -l@NAME@ -Wl,-rpath,'$ORIGIN' -o example
 *   ./example
 */
#include <stdio.h>
#include <stdlib.h>

#include "@NAME@.h"

/* Bytes that hold an element of any type. */
enum { ELEMENT = 16, FREE_SIZE = 1 };

static int fail(void) {
  fprintf(stderr, "example: %s\n", @NAME@_error());
  return 1;
}

static void *memory_for(const @NAME@_tensor *tensor) {
  size_t count = 1;
  for (int axis = 0; axis < tensor->rank; axis++) count *= tensor->shape[axis];
  return calloc(count, ELEMENT);
}

int main(void) {
  @NAME@_model *model;
  @NAME@_tensor inputs[@PREFIX@_INPUTS + 1], outputs[@PREFIX@_OUTPUTS + 1];
  if (@NAME@_open("@NAME@.weights", 0, &model)) return fail();
  @NAME@_example(FREE_SIZE, inputs);
  for (int i = 0; i < @PREFIX@_INPUTS; i++) inputs[i].data = memory_for(&inputs[i]);
  if (@NAME@_shapes(inputs, outputs)) return fail();
  for (int i = 0; i < @PREFIX@_OUTPUTS; i++) outputs[i].data = memory_for(&outputs[i]);
  if (@NAME@_run(model, inputs, outputs)) return fail();
  for (int i = 0; i < @PREFIX@_OUTPUTS; i++) {
    printf("output %d:", i);
    for (int axis = 0; axis < outputs[i].rank; axis++)
      printf(" %lld", (long long)outputs[i].shape[axis]);
    printf("\n");
    free(outputs[i].data);
  }
  for (int i = 0; i < @PREFIX@_INPUTS; i++) free(inputs[i].data);
  @NAME@_close(model);
  return 0;
}
