"""The work of `gptrs chat`: a conversation with a model on a terminal."""
