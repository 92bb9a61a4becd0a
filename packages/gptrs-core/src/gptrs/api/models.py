"""Names for models and for functionals.

- `Tensor`, `tensor`, `jit`, `register_pytree`, `Module`, `Params`, `ConfigFields`, and the modules
  `nn` and `functionals`. `nn` has layers, activations, rope settings, the paged key/value cache and
  the base classes of models; here are `CausalLMModule`, `ImageClassifierModule`, `Seq2SeqModule`,
  `CacheSpec`, `LayerCache`, `PageBuffers` and `RaggedStep`.
- The protocols of capabilities: `CausalLM`, `ImageClassifier`, `ImageEmbedder`, `ImageLM`,
  `ImageTextScorer`, `TextEmbedder`, `TextClassifier`, `TokenClassifier`, `MaskedLM`, `Seq2SeqLM`,
  `Transcriber`, `SoundTranscriber`, `CTCModel`, `HiddenStates`,
  `DraftHeadSource`.
- `GgufArchitecture` maps the tensors and settings of a kind to those of llama.cpp, `TimmFamily` to
those of timm.
- `Reference`, another implementation of a model, and `ReferencedModel`, which its factory gets.
- For functionals: `functional`, `implement`, and the module `primitives`.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
