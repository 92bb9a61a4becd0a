"""The names that plugins may import: everything else in gptrs may change without notice.

A plugin states the `API_VERSION` that it was written for, or a range; `is_compatible` compares.
Within a version these names keep their meaning, see docs/plugins/compatibility.md.

Here are the descriptions, `BackendPlugin`, `ModelPlugin`, `FunctionalPlugin`, `CommandPlugin`,
`ImporterPlugin`, `ExporterPlugin`, `DemoModelPlugin` and `TraceSinkPlugin`, `hookimpl`, and the
errors: `GptrsError` and its subclasses, each saying when it is raised. Each other name lies in one
of the modules `backends`, `models`, `passes`, `importers` and `programs`, by who needs it. A name
is imported on first use, so that the module that an entry point names is cheap to import.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
