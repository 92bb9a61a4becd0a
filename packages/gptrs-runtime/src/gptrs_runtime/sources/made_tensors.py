"""A source of tensors made from those of another one: decoded, rounded, cut, renamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity, identity_of_computed
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry, refused
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.errors import CheckpointError
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted


class MadeTensor:
    """A tensor `name` made from `parts`, tensors of `stored`; the first has the codes.

    `recipe` identifies how it is made. `hint` is for errors about parts that do not fit each other.
    """

    recipe: str = ""
    hint: str = "config.json and the weights are not of one model"

    def __init__(self, stored: FileSource, name: str, parts: Sequence[str]) -> None:
        self.stored = stored
        self.name = name
        self.parts = parts

    @property
    def hidden(self) -> Iterable[str]:
        """The stored tensors that it replaces."""
        return self.parts

    @property
    def type(self) -> TensorType:
        """Its type; CheckpointError if the stored parts do not fit."""
        return self.described().type

    def described(self) -> QuantizedTensor:
        """Return its storage; CheckpointError for parts that do not fit each other."""
        raise NotImplementedError

    def quantized(self) -> QuantizedTensor | None:
        """Return its quantization; None if programs cannot take its parts."""
        return self.described()

    def load(self) -> np.ndarray:
        """Return its values."""
        raise NotImplementedError

    def load_part(self, part: Part) -> np.ndarray:
        """Return a part in the form of programs, read-only; CheckpointError if it is unreadable."""
        raise NotImplementedError

    def view(self) -> np.ndarray:
        """Return its values, perhaps as a view of a mapped file."""
        return self.load()

    def flat(self) -> Iterator[np.ndarray]:
        """Yield its elements in order."""
        yield self.load().reshape(-1)

    def identity(self) -> WeightIdentity | None:
        """Return its identity; None if it is unknown."""
        return identity_of_computed(self.recipe, [self.stored.identity_of(e) for e in self.parts])

    def identity_of_part(self, part: Part) -> WeightIdentity | None:
        """Return the identity of a part; None if it is unknown."""
        found = self.identity()
        return found if found is None else found.computed(part)

    def locate(self) -> tuple[MappedTensors, TensorEntry]:
        """Return the file of the codes, and an entry for the whole weight with all parts."""
        quantized = self.described()
        located = [self.stored.locate(each) for each in self.parts]
        file, codes = located[0]
        nbytes = sum(entry.nbytes for _, entry in located)
        shape = quantized.shape
        return file, TensorEntry(self.name, quantized.format, None, shape, codes.offset, nbytes)

    def misfit(self, name: str, problem: str) -> CheckpointError:
        """Return the error for a stored tensor that does not fit."""
        return refused(self.stored.origin, name, problem, self.hint)


class MadeTensors(FileSource):
    """The tensors of `stored`, with `made` instead of those that they replace.

    With `alone`, the other stored tensors are hidden.
    """

    def __init__(
        self, stored: FileSource, made: Iterable[MadeTensor], *, alone: bool = False
    ) -> None:
        self._made = {each.name: each for each in made}
        files = () if alone else stored.names()
        hidden = {name for each in self._made.values() for name in each.hidden}
        plain = (name for name in files if name in self._made or name not in hidden)
        self._shown = dict.fromkeys((*plain, *self._made))
        super().__init__(dict.fromkeys(self._shown, ""), self._none, stored.origin)
        self._stored = stored

    def _none(self, _: str) -> MappedTensors:
        return self._stored.open_files()[0]

    @property
    @override
    def files(self) -> tuple[str, ...]:
        return self._stored.files

    @override
    def open_files(self) -> Sequence[MappedTensors]:
        return self._stored.open_files()

    @override
    def require_unchanged(self) -> None:
        self._stored.require_unchanged()

    def _find(self, name: str) -> MadeTensor | None:
        """Return a made tensor; None for a stored one; CheckpointError if there is neither."""
        if name not in self._shown:
            raise CheckpointError(f"{quoted(self.origin, 200)} has no tensor {quoted(name)}")
        return self._made.get(name)

    @override
    def type_of(self, name: str) -> TensorType:
        made = self._find(name)
        return self._stored.type_of(name) if made is None else made.type

    @override
    def load(self, name: str) -> np.ndarray:
        made = self._find(name)
        return self._stored.load(name) if made is None else made.load()

    @override
    def view(self, name: str) -> np.ndarray:
        made = self._find(name)
        return self._stored.view(name) if made is None else made.view()

    @override
    def parts(self, name: str) -> Iterator[np.ndarray]:
        made = self._find(name)
        return self._stored.parts(name) if made is None else made.flat()

    @override
    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        made = self._find(name)
        return self._stored.read_slice(name, index) if made is None else made.load()[index]

    @override
    def is_copy(self, name: str, other: str) -> bool:
        # Decoding whole tensors to compare them would take longer than keeping both costs.
        stored = self._find(name) is None and self._find(other) is None
        return stored and self._stored.is_copy(name, other)

    @override
    def identity_of(self, name: str) -> WeightIdentity | None:
        made = self._find(name)
        return self._stored.identity_of(name) if made is None else made.identity()

    @override
    def locate(self, name: str) -> tuple[MappedTensors, TensorEntry]:
        made = self._find(name)
        return self._stored.locate(name) if made is None else made.locate()

    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return the quantization of a tensor or None; CheckpointError for a misfit."""
        made = self._find(name)
        return None if made is None else made.quantized()

    def load_part(self, name: str, part: Part) -> np.ndarray:
        """Return a part of a quantized tensor, read-only; CheckpointError if it cannot be read."""
        found = self._made[name].load_part(part)
        found.flags.writeable = False
        return found

    def identity_of_part(self, name: str, part: Part) -> WeightIdentity | None:
        """Return the identity of the part, unlike that of other arrays; None if unknown."""
        return self._made[name].identity_of_part(part)
