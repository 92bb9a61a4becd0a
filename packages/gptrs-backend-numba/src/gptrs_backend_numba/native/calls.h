
/* Fill in the shapes of the outputs for inputs of these shapes; data is not looked at. */
__attribute__((visibility("default")))
int @NAME@_shapes(const @NAME@_tensor *inputs, @NAME@_tensor *outputs);

/* Compute the outputs: shapes are filled in, memory for `data` is the caller's. Inputs are not
 * changed. */
__attribute__((visibility("default")))
int @NAME@_run(@NAME@ *model, const @NAME@_tensor *inputs, @NAME@_tensor *outputs);
