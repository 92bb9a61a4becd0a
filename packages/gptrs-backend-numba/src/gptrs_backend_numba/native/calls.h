
/* Fill in shapes of inputs, with `size` for each size that is free; data stays NULL. */
__attribute__((visibility("default")))
void @NAME@_example(int64_t size, @NAME@_tensor *inputs);

/* Return NumPy's name of the element type of input number `i`, of output number `i` if `output`. */
__attribute__((visibility("default")))
const char *@NAME@_dtype(int output, int i);

/* Return the length of the shape of a tensor, for callers that do not read this file. */
__attribute__((visibility("default")))
int @NAME@_most_axes(void);

/* Fill in the shapes of the outputs for inputs of these shapes; data is not looked at. */
__attribute__((visibility("default")))
int @NAME@_shapes(const @NAME@_tensor *inputs, @NAME@_tensor *outputs);

/* Compute the outputs: shapes are filled in, memory for `data` is the caller's. Inputs are not
 * changed. */
__attribute__((visibility("default")))
int @NAME@_run(@NAME@_model *model, const @NAME@_tensor *inputs, @NAME@_tensor *outputs);
