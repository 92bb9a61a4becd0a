"""The public names for plugins; everything else in gptrs may change without notice.

A plugin states the `API_VERSION` that it was written for, or a range; `is_compatible` compares.
Within a version these names keep their meaning, see docs/plugins/compatibility.md.

This package has the descriptions `BackendPlugin`, `ModelPlugin`, `FunctionalPlugin`,
`CommandPlugin`, `ImporterPlugin`, `ExporterPlugin`, `DemoModelPlugin`, `ReferencePlugin` and
`TraceSinkPlugin`, `hookimpl`, and the errors, `GptrsError` and its subclasses. Other names are in
the modules `backends`, `models`, `passes`, `importers` and `programs`, by audience. Names are
imported on first use, so that the module of an entry point stays cheap to import.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
