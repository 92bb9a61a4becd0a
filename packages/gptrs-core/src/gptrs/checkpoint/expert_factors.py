"""Factors that LoRA adapters add to matrices of experts: of all together, or of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.checkpoint.adapter_config import INNER, LowRankAdapter, LowRankProduct
from gptrs.errors import CheckpointError
from gptrs.quoting import quoted

_MOST_INNER = 4


class ExpertWeight(Struct, frozen=True):
    """A matrix [outputs, inputs] of each of `count` experts, as adapters name it.

    transformers has it as `parameter` of `module`. Older versions have `layers` in each expert,
    `{}` being its number, whose outputs follow each other, or `alternate`. A model that holds these
    apart asks for one `block` of the outputs. `turned` ones are stored as [inputs, outputs].
    """

    module: str
    parameter: str
    layers: Sequence[str]
    router: tuple[str, str]
    """The layer that chooses among the experts, as files and as transformers 5 name it."""
    count: int
    inputs: int
    outputs: int
    block: int | None = None
    alternate: bool = False
    turned: bool = False

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return f"{self.module}.{self.parameter}"

    def below(self, prefix: str) -> ExpertWeight:
        """Return the weight with names that begin with a prefix."""
        layers = [prefix + each for each in self.layers]
        router = prefix + self.router[0], prefix + self.router[1]
        return replace(self, module=prefix + self.module, layers=layers, router=router)

    def rows(self) -> slice:
        """Return the outputs of the block, all without one."""
        if self.block is None:
            return slice(None)
        size = self.outputs // len(self.layers)
        if self.alternate:
            return slice(self.block, None, len(self.layers))
        return slice(self.block * size, (self.block + 1) * size)


class ExpertFactors(NamedTuple):
    """The factors of all experts, scaled, and the modules of the adapter that have them."""

    a: np.ndarray
    """F32 [experts, rank, inputs]."""
    b: np.ndarray
    """F32 [experts, outputs, rank]."""
    modules: Sequence[str]


def expert_factors(adapter: LowRankAdapter, weight: ExpertWeight) -> ExpertFactors | None:
    """Return what an adapter adds to the matrices of experts, None if it does not change them.

    CheckpointError for factors of an expert that have other sizes.
    """
    together = _together(adapter, weight)
    return together if together is not None else _of_each(adapter, weight)


def split_factors(a: np.ndarray, b: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors of each of `count` experts of those that PEFT has for all.

    [experts * rank, inputs] -> [experts, rank, inputs], by expert, and [outputs, rank * experts] ->
    [experts, outputs, rank], by rank.
    """
    firsts = a.reshape(count, -1, a.shape[1])
    return firsts, b.reshape(len(b), -1, count).transpose(2, 0, 1)


def _together(adapter: LowRankAdapter, weight: ExpertWeight) -> ExpertFactors | None:
    """Return factors for `target_parameters`, in which all experts are stacked."""
    sizes = weight.inputs, weight.outputs
    for depth in range(_MOST_INNER):
        # PEFT nests the parameters of a module without their names: sizes tell which one it is.
        module = adapter.module_of(weight.module + INNER * depth)
        product = None if module is None else adapter.product(module)
        if module is None or product is None or len(product.a) % weight.count:
            continue
        found = product.a.shape[1], len(product.b)
        if sizes not in (found, found[::-1]):
            continue
        a, b = split_factors(product.a, product.b, weight.count)
        # PEFT before 0.19 took the axes of each matrix for inputs and outputs, as they are stored.
        turned = adapter.has_turned_experts and not weight.turned
        if found != sizes or (found[0] == found[1] and turned):
            a, b = b.transpose(0, 2, 1), a.transpose(0, 2, 1)
        plain = module.removesuffix(INNER * depth)
        factor = adapter.factor(f"{plain}.{weight.parameter}", a.shape[1])
        return _whole(a, b[:, weight.rows()] * np.float32(factor), [module])
    return None


def _of_each(adapter: LowRankAdapter, weight: ExpertWeight) -> ExpertFactors | None:
    """Return the factors of the linear layers of each expert, joined; missing ones are zero."""
    count, blocks = weight.count, range(len(weight.layers))
    own = blocks if weight.block is None else [weight.block]
    found: dict[tuple[int, int], str] = {}
    for block in own:
        for expert in range(count):
            module = adapter.module_of(weight.layers[block].format(expert))
            if module is not None:
                found[expert, block] = module
    if not found:
        return None
    size = weight.outputs // len(blocks)
    products = {key: adapter.product(module) for key, module in found.items()}
    rank = max(len(product.a) for product in products.values())
    a = np.zeros((count, len(own) * rank, weight.inputs), np.float32)
    b = np.zeros((count, len(own) * size, len(own) * rank), np.float32)
    for (expert, block), product in products.items():
        _require_sizes(adapter, found[expert, block], product, (weight.inputs, size))
        at = own.index(block)
        columns = slice(at * rank, at * rank + len(product.a))
        rows = replace(weight, block=block).rows() if weight.block is None else slice(None)
        a[expert, columns] = product.a
        b[expert, rows, columns] = product.scaled_b()
    return _whole(a, b, list(found.values()))


def _require_sizes(
    adapter: LowRankAdapter, module: str, product: LowRankProduct, sizes: tuple[int, int]
) -> None:
    found = product.a.shape[1], len(product.b)
    if found != sizes or product.magnitude is not None:
        raise CheckpointError(
            f"the adapter {quoted(str(adapter.path), 200)} changes {quoted(module)} from {found[0]}"
            f" to {found[1]} values{'' if product.magnitude is None else ' with magnitudes'}, the"
            f" experts of the model have {sizes[0]} and {sizes[1]}",
            hint="it is an adapter of another model",
        )


def _whole(a: np.ndarray, b: np.ndarray, modules: Sequence[str]) -> ExpertFactors:
    return ExpertFactors(np.ascontiguousarray(a), np.ascontiguousarray(b), modules)
