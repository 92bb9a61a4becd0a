"""`jit`: match a call's arguments, flatten them, capture and compile once, then replay."""
