
int @NAME@_most_axes(void) { return @PREFIX@_MOST_AXES; }

const char *@NAME@_dtype(int output, int i) {
  return output ? output_dtypes[i] : input_dtypes[i];
}

void @NAME@_example(int64_t size, @NAME@_tensor *inputs) {
  const struct program *p = &programs[0];
  int64_t slot[MOST_SLOTS];
  memcpy(slot, p->first_slots, p->slots * sizeof *slot);
  for (int i = 0; i < p->symbols; i++) slot[i] = size;
  compute_sizes(p, slot);
  memset(inputs, 0, INPUTS * sizeof *inputs);
  for (int i = 0; i < INPUTS; i++) {
    inputs[i].rank = p->input_types[i].rank;
    for (int axis = 0; axis < inputs[i].rank; axis++)
      inputs[i].shape[axis] = slot[p->dim_slots[p->input_types[i].first + axis]];
  }
}

int @NAME@_shapes(const @NAME@_tensor *inputs, @NAME@_tensor *outputs) {
  REQUIRE(inputs || !INPUTS, "inputs");
  REQUIRE(outputs, "outputs");
  int64_t slot[MOST_SLOTS];
  int number = choose(inputs, slot);
  if (number < 0) return @PREFIX@_ARGUMENT;
  take_shapes(&programs[number], slot, outputs);
  return 0;
}

int @NAME@_run(@NAME@_model *model, const @NAME@_tensor *inputs, @NAME@_tensor *outputs) {
  REQUIRE(model, "model");
  REQUIRE(inputs || !INPUTS, "inputs");
  REQUIRE(outputs, "outputs");
  pthread_mutex_lock(&model->lock);
  int code = run(model, inputs, outputs);
  pthread_mutex_unlock(&model->lock);
  return code;
}
