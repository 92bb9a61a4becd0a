"""Names for importers and exporters of models in other formats.

An importer makes an `ImportedModel` with `ModelInput`s, called with `named_arguments`. The base
classes `ImportedGraph` and `ConvertedGraph` have the common code of importers; the latter runs a
`Step`, which `jitted` makes for the free sizes from `free_axes`. An `ImportRecord` keeps on disk
the contents of a file, a `Closure` identifies a step for other processes.

`Converters` is a table with a `Converter` for each operator, which gets a `Node` of the graph;
`DAMAGE` lists the Python errors that mean a damaged node. `is_number`, `is_symbol`, `size_tensor`
and `scalar` handle sizes and numbers, `wrapped` converts integers by their low bits, `within_axis`
checks indices; `clipped` shortens names from files in messages. `transformed` and `real_signal` are
Fourier transforms; `eliminated`, `solved`, `factored`, `cholesky_factor`, `substituted`, `unit_of`,
`over_columns` and `first_fault` are for matrices.

`FileContents`, with a `FileValue` for each input and output, say what is in a file that may not be
runnable. A `LanguageModelFile` is one that text is generated with.

`share_array` and `take_array` exchange memory with other libraries without a copy. An exporter gets
an `OutgoingModel` with `OutgoingTensor`s, and writes by `atomic_file` and `write_data`.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
