"""Names of the files that sentence-transformers saves beside those of a transformer."""

from __future__ import annotations

from typing import Final

MODULES: Final = "modules.json"
"""The modules of a model in their order, and the folder of each."""
TRANSFORMER_CONFIG: Final = "sentence_bert_config.json"
"""Length and case of texts; its name is the same for transformers of other kinds."""
MODEL_CONFIG: Final = "config_sentence_transformers.json"
"""The prompts, the size of vectors and how they are compared."""
