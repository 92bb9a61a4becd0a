"""A folder that timm saved: settings, tensors and transforms as transformers would have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, cast

import numpy as np
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity, identity_of_computed
from gptrs.checkpoint.config_fields import Fields
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.checkpoint.param_source import FileSource
from gptrs.errors import ModelError
from gptrs.ir.tensor_type import TensorType
from gptrs.plugins.gguf_architecture import Shapes, TimmFamily
from gptrs.quoting import quoted
from gptrs_runtime.sources.format_kinds import timm_kind
from gptrs_runtime.sources.made_tensors import MadeTensor, MadeTensors

PREPROCESSOR: Final = "preprocessor_config.json"
"""The file that is made of `pretrained_cfg`."""
_WRAPPER: Final = "timm_wrapper"
"""The `model_type` where transformers saved a model of timm, with a prefix before all names."""
_PREFIX: Final = "timm_model."


def is_timm(settings: Mapping[str, object]) -> bool:
    """Return whether config.json is that of a model of timm."""
    if settings.get("model_type") not in (None, _WRAPPER):
        return False
    return "architecture" in settings and isinstance(settings.get("pretrained_cfg"), dict)


class TimmFolder(MadeTensors):
    """The tensors of a folder of timm under the names of the kind that its architecture is.

    `config` is what config.json of that kind would hold. ModelError for an architecture that no
    kind has.
    """

    def __init__(self, stored: FileSource, settings: Mapping[str, object], where: str) -> None:
        fields = Fields(settings, "in config.json")
        fields.require("model_args", {})
        own = {name.removeprefix(_PREFIX): name for name in stored.names()}
        shapes = {
            short: stored.type_of(name).shape
            for short, name in own.items()
            if not name.endswith("num_batches_tracked")
        }
        found, parts = translated(
            fields.text("architecture") or "", fields.text("global_pool") or "", shapes, where
        )
        classes = _labels(fields)
        self.config: dict[str, object] = {**found, **({"id2label": classes} if classes else {})}
        made = (TimmTensor(stored, n, p._replace(stored=own[p.stored])) for n, p in parts.items())
        super().__init__(stored, made, alone=True)


class TimmTensor(MadeTensor):
    """A tensor of timm, or some of its rows, in the shape that the kind has."""

    def __init__(self, stored: FileSource, name: str, part: Part) -> None:
        super().__init__(stored, name, (part.stored,))
        self._part = part

    @property
    @override
    def type(self) -> TensorType:
        return TensorType(self.stored.type_of(self._part.stored).dtype, self._part.shape)

    @override
    def quantized(self) -> None:
        return None

    @override
    def load(self) -> np.ndarray:
        part = self._part
        if part.parts == 1:
            return self.stored.load(part.stored).reshape(part.shape)
        return self.stored.read_slice(part.stored, _slices(part)).reshape(part.shape)

    @override
    def view(self) -> np.ndarray:
        part = self._part
        whole = self.stored.view(part.stored)
        return (whole[_slices(part)] if part.parts > 1 else whole).reshape(part.shape)

    @override
    def flat(self) -> Iterator[np.ndarray]:
        return self.stored.parts(self._part.stored) if self._part.parts == 1 else super().flat()

    @override
    def identity(self) -> WeightIdentity | None:
        part = self._part
        found = self.stored.identity_of(part.stored)
        if self.stored.type_of(part.stored).shape == part.shape:
            return found
        return identity_of_computed(f"rows {part.number}/{part.parts} {part.shape}", [found])

    @override
    def locate(self) -> tuple[MappedTensors, TensorEntry]:
        part = self._part
        file, whole = self.stored.locate(part.stored)
        nbytes = whole.nbytes // part.parts
        offset = whole.offset + part.number * nbytes
        return file, TensorEntry(self.name, whole.tag, whole.dtype, part.shape, offset, nbytes)


def _slices(part: Part) -> tuple[slice, ...]:
    """Return what a part is of the stored tensor: its rows, and all of the other axes."""
    rows = part.shape[0]
    first = slice(part.number * rows, (part.number + 1) * rows)
    return (first, *(slice(None) for _ in part.shape[1:]))


def preprocessor_of(settings: Mapping[str, object]) -> bytes:
    """Return the preprocessor_config.json that transformers saves for a model of timm."""
    names = ("architecture", "pretrained_cfg")
    made = {name: settings[name] for name in names}
    return json.dumps({"image_processor_type": "TimmWrapperImageProcessor", **made}).encode()


def _labels(fields: Fields) -> dict[str, str]:
    """Return the class of each number: its description, else its name; empty without names."""
    given = fields.get("id2label")
    if isinstance(given, dict):
        return cast("dict[str, str]", given)
    pretrained = cast("dict[str, object]", fields.get("pretrained_cfg"))
    names = fields.get("label_names", pretrained.get("label_names"))
    if not isinstance(names, list):
        return {}
    shown = fields.get("label_descriptions", pretrained.get("label_descriptions"))
    texts = cast("dict[str, object]", shown) if isinstance(shown, dict) else {}
    words = cast("list[object]", names)
    return {str(number): str(texts.get(str(name), name)) for number, name in enumerate(words)}


# Models that timm saves, as transformers saves the same ones: names of tensors, and settings.


_WITHOUT_TIMM: Final = (
    "export it from timm with `torch.export.save(torch.export.export(model.eval(), (image,)),"
    ' "model.pt2")`: a file `.pt2` is imported'
)


class Part(NamedTuple):
    """A stored tensor, or the rows of its part `number` of `parts` equal ones, in another shape."""

    stored: str
    shape: tuple[int, ...]
    number: int = 0
    parts: int = 1


def translated(
    architecture: str, pooling: str, shapes: Shapes, where: str
) -> tuple[dict[str, object], dict[str, Part]]:
    """Return the settings of the kind of an architecture, and its tensors by the kind's names.

    `pooling` is the `global_pool` of its config.json. ModelError for an architecture, a pooling or
    a tensor that no kind has.
    """
    shown = f"the architecture {quoted(architecture)} of timm in {quoted(where, 200)}"
    kind, family, found = timm_kind(architecture, shown, _WITHOUT_TIMM)
    if pooling not in ("", family.pooling):
        raise ModelError(
            f"{shown} is supported with the `global_pool` {quoted(family.pooling)} alone,"
            f" found {quoted(pooling)}",
            hint=_WITHOUT_TIMM,
        )
    if family.head is not None and family.head not in shapes:
        raise ModelError(
            f"{shown} has no tensor {quoted(family.head)}: without a head it is not supported",
            hint=_WITHOUT_TIMM,
        )
    parts: dict[str, Part] = {}
    for name in shapes:
        parts |= _renamed(family, name, shapes, shown)
    try:
        return {"model_type": kind, **family.settings(found, shapes)}, parts
    except (KeyError, IndexError):
        raise ModelError(
            f"{shown} lacks tensors of its layers", hint="download the weights again"
        ) from None


def _renamed(family: TimmFamily, name: str, shapes: Shapes, shown: str) -> dict[str, Part]:
    shape, counted = shapes[name], family.counted(name, shapes)
    if not counted:
        return {}
    for pattern, names in family.rules:
        found = re.fullmatch(pattern, counted)
        if found is not None:
            count = len(names)
            own = family.shaped(name, shape)
            if own and own[0] % count:
                break
            own = (own[0] // count, *own[1:]) if count > 1 else own
            return {
                found.expand(each): Part(name, own, index, count)
                for index, each in enumerate(names)
            }
    raise ModelError(
        f"{shown} has a tensor {quoted(name)} {list(shape)}, which the kind does not have",
        hint=_WITHOUT_TIMM,
    )
