"""Names for importers and exporters of models in other formats.

An importer makes an `ImportedModel` with `ModelInput`s, called with `named_arguments`; its base
classes `ImportedGraph` and `ConvertedGraph` do what importers have in common, the latter by a
`Step` that `jitted` makes for sizes that `free_axes` names.

`Converters` is a table with a `Converter` for each operator, which gets a `Node` of the graph;
`DAMAGE` are the errors of Python that stand for a node which is not sound. `is_number`,
`is_symbol`, `size_tensor` and `scalar` are for sizes and numbers, `clipped` for names out of a file
in messages.

`share_array` and `take_array` exchange memory with other libraries without a copy. An exporter gets
an `OutgoingModel` with `OutgoingTensor`s, and writes by `atomic_file` and `write_data`.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
