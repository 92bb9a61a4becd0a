"""The kits of plugins as pytest classes, which the tests of a plugin inherit.

>>> from gptrs_conformance.plugin_suites import ImporterSuite
>>> class TestMine(ImporterSuite):
...     plugin_name = "mine"
...
...     def sample(self, folder):
...         path = folder / "model.mine"
...         path.write_text("...")
...         return path

Each check is a test. One that has nothing to work on, such as a sample, is skipped with the reason.
This module needs pytest; the rest of `gptrs_conformance` does not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from gptrs.backend.contract import Backend
from gptrs.plugins.exporters import ImportedModel
from gptrs.plugins.manager import manager
from gptrs_conformance.functional_use import Use
from gptrs_conformance.kit import run_check
from gptrs_conformance.plugin_kits import (
    commands,
    exporters,
    functionals,
    importers,
    model_subject,
    models,
    references,
    trace_sinks,
)
from gptrs_conformance.plugin_kits.subject import KitCheck, checks_of, name_of
from gptrs_runtime.load import load_model


class PluginSuite:
    """One test for each check of a kit, on the plugin called `plugin_name`.

    `backend_name` None is the default backend. `known_failures` maps the name of a check to the
    reason why it is allowed to fail; one that passes is an error, so that the list remains
    accurate. Subclasses choose the kit.
    """

    plugin_name: ClassVar[str]
    backend_name: ClassVar[str | None] = None
    known_failures: ClassVar[Mapping[str, str]] = {}
    kit: ClassVar[Sequence[KitCheck[Any]]] = ()

    def subject(self) -> object:
        """Return what the checks of the kit take."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test a check."""
        if "check_name" in metafunc.fixturenames:
            # By name: it becomes the id of the test, by which `-k` selects it.
            metafunc.parametrize("check_name", [name_of(check) for check in self.kit])

    @pytest.fixture
    def kit_backend(self) -> Backend:
        """The backend on which the checks run."""
        return manager().get_backend(self.backend_name)

    def test_kit(self, check_name: str, kit_backend: Backend) -> None:
        """One check of the kit."""
        chosen = [check for check in self.kit if name_of(check) == check_name]
        (check,) = checks_of(self.subject(), chosen)
        outcome = run_check(kit_backend, check)
        if check_name in self.known_failures:
            # Like a strict xfail of pytest; a list of failures that no longer fail would hide new
            # ones.
            if outcome.status != "fail":
                pytest.fail(f"{check_name} passes; remove it from `known_failures`", pytrace=False)
        elif outcome.status == "fail":
            pytest.fail(f"{check_name}: {outcome.reason}", pytrace=False)
        if outcome.status == "refused":
            pytest.skip(outcome.reason)


class ImporterSuite(PluginSuite):
    """The kit of importers; override `sample`, and `reference` with the same model in NumPy."""

    kit = importers.KIT

    def sample(self, folder: Path) -> Path:
        """Write a file with a small model into `folder` and return its path."""
        raise NotImplementedError

    def reference(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the outputs of the sample by name."""
        raise NotImplementedError

    def subject(self) -> importers.Importer:
        """Return the importer with what its class overrides."""
        own = type(self)
        return importers.installed_importer(
            self.plugin_name,
            # An author who does not override a method gets its checks skipped, not failed.
            self.sample if own.sample is not ImporterSuite.sample else None,
            self.reference if own.reference is not ImporterSuite.reference else None,
        )


class ExporterSuite(PluginSuite):
    """The kit of exporters; the importer of its distribution reads files back.

    Override `read` where there is none.
    """

    kit = exporters.KIT

    def read(self, path: Path, backend: Backend) -> ImportedModel:
        """Return the model in a file that the exporter wrote."""
        raise NotImplementedError

    def subject(self) -> exporters.Exporter:
        """Return the exporter with what its class overrides."""
        overridden = type(self).read is not ExporterSuite.read
        return exporters.installed_exporter(self.plugin_name, self.read if overridden else None)


class FunctionalSuite(PluginSuite):
    """The kit of implementations of functionals; `uses` are further calls."""

    kit = functionals.KIT
    uses: ClassVar[Sequence[Use]] = ()

    def subject(self) -> functionals.Functional:
        """Return the implementation with the further calls."""
        return functionals.installed_functional(self.plugin_name, self.uses)


class TraceSinkSuite(PluginSuite):
    """The kit of trace sinks."""

    kit = trace_sinks.KIT

    def subject(self) -> trace_sinks.TraceSink:
        """Return the sink."""
        return trace_sinks.installed_trace_sink(self.plugin_name)


class CommandSuite(PluginSuite):
    """The kit of commands; override `works` and `fails` with arguments of the command."""

    kit = commands.KIT

    def works(self, folder: Path) -> Sequence[str | os.PathLike[str]]:
        """Write files into `folder`, if need be; return arguments with which it succeeds."""
        raise NotImplementedError

    def fails(self, folder: Path) -> Sequence[str | os.PathLike[str]]:
        """Return arguments with which it ends with an error."""
        raise NotImplementedError

    def subject(self) -> commands.Command:
        """Return the command with what its class overrides."""
        own = type(self)
        return commands.Command(
            name=self.plugin_name,
            works=self.works if own.works is not CommandSuite.works else None,
            fails=self.fails if own.fails is not CommandSuite.fails else None,
        )


class _WithFolder(PluginSuite):
    """A suite whose tests have a folder for a model."""

    @pytest.fixture(autouse=True)
    def _own_folder(self, tmp_path: Path) -> None:
        self._folder = tmp_path / "model"
        self._folder.mkdir()


class ModelSuite(_WithFolder):
    """The kit of kinds of models, on a small model of the kind.

    Override `model` to write one, a folder with `config.json` and `model.safetensors`.
    """

    kit = models.KIT

    def model(self, folder: Path) -> Path:
        """Write a model into `folder` and return the path to load."""
        raise NotImplementedError

    def subject(self) -> model_subject.Model:
        """Return the model, or the kind alone if `model` is not overridden."""
        if type(self).model is ModelSuite.model:
            return model_subject.kind_alone(self.plugin_name)
        return model_subject.model_in(self.model(self._folder))


class ReferenceSuite(_WithFolder):
    """The kit of references; override `model` with one of a kind that the reference takes."""

    kit = references.KIT

    def model(self, folder: Path) -> Path:
        """Return the path of a model to load, or write one into `folder` and return its path."""
        raise NotImplementedError

    def subject(self) -> references.ReferenceUnderTest:
        """Return the reference; on the demo model if `model` is not overridden."""
        if type(self).model is ReferenceSuite.model:
            return references.installed_reference(self.plugin_name)
        path = self.model(self._folder)
        return references.installed_reference(
            self.plugin_name, lambda backend: load_model(path, backend=backend)
        )
