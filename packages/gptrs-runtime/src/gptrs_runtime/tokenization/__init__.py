"""Text to token ids and back: `tokenizer` reads `tokenizer_file`, whose growth is bounded first."""
