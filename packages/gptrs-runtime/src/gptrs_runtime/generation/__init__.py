"""Text generation: options, logits processors, single texts, and many texts at once."""
