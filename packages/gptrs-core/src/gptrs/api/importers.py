"""Names for importers and exporters of models in other formats.

An importer makes an `ImportedModel` with `ModelInput`s, called with `named_arguments`; its base
classes `ImportedGraph` and `ConvertedGraph` do what importers have in common.
`share_array` and `take_array` exchange memory with other libraries without a copy. An exporter gets
an `OutgoingModel` with `OutgoingTensor`s, and writes by `atomic_file` and `write_data`.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
