"""Files of tensors: `tensor_archive` picks the format, a module each reads or writes one."""
