"""Equal blocks become one function of the program; what is odd is captured in place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import numpy as np
import pytest

import gptrs
from functionals.temporary import implemented
from gptrs import functionals as F
from gptrs.backend.contract import Backend
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.custom_call import decompositions
from gptrs.nn import CacheSpec, LayerCache, Module, PageBuffers, captured_once, ragged_step
from gptrs.nn.ragged_step import as_tensors, own_pages

WIDTH = 32
X = np.random.default_rng(1).normal(size=(3, WIDTH)).astype(np.float32)


class Layer(Module):
    def __init__(self, seed: int) -> None:
        drawn = np.random.default_rng(seed).normal(size=(WIDTH, WIDTH)) / 6
        self.weight = gptrs.tensor(drawn.astype(np.float32))
        self.bias = gptrs.tensor(np.full(WIDTH, seed, np.float32))

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Block(Module):
    def __init__(self, seed: int, scale: float = 1.0) -> None:
        self.layer = Layer(seed)
        self.norm = gptrs.tensor(np.linspace(seed, 1, WIDTH, dtype=np.float32))
        self.scale = scale
        self.activation: Callable[[Tensor], Tensor] = F.silu

    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.activation(self.layer(x * (self.norm + 1.0))) * self.scale
        return x if mask is None else x * mask


def through(blocks: list[Block], x: Tensor, **others: Tensor) -> Tensor:
    for block in blocks:
        x = block(x, **others)
    return x


def plainly(blocks: list[Block], x: Tensor) -> Tensor:
    for block in blocks:
        x = type(block).__call__.__wrapped__(block, x)  # pyright: ignore[reportFunctionMemberAccess]
    return x


def calls_of(blocks: list[Block]) -> list[str]:
    """The functions that a program of the blocks calls, in order."""
    program = gptrs.jit(lambda x: through(blocks, x)).lower(gptrs.tensor(X))
    return [made.op.function for made in program.main.body.instructions if type(made.op) is Call]


def require_same(blocks: list[Block], backend: Backend) -> None:
    with gptrs.use_backend(backend):
        one = gptrs.jit(lambda x: through(blocks, x))(X).numpy()
        other = gptrs.jit(lambda x: plainly(blocks, x))(X).numpy()
    np.testing.assert_array_equal(one, other)


def test_equal_blocks_call_one_function(backend):
    blocks = [Block(seed) for seed in range(5)]
    names = calls_of(blocks)
    assert len(names) == 5
    assert len(set(names)) == 1
    assert names[0].startswith("Block_")
    require_same(blocks, backend)


def test_blocks_of_other_settings_call_other_functions(backend):
    blocks = [Block(0), Block(1, scale=0.5), Block(2), Block(3, scale=0.5), Block(4, scale=-0.0)]
    names = calls_of(blocks)
    assert names[0] == names[2]
    assert names[1] == names[3]
    assert len(set(names)) == 3
    require_same(blocks, backend)


class Adapted(Layer):
    """A layer with a low-rank addition, as LoRA has it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.down = gptrs.tensor(np.full((2, WIDTH), 0.1, np.float32))
        self.up = gptrs.tensor(np.full((WIDTH, 2), float(seed), np.float32))

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + F.linear(F.linear(x, self.down), self.up)


def test_an_adapted_layer_makes_another_function(backend):
    blocks = [Block(seed) for seed in range(4)]
    blocks[1].layer, blocks[3].layer = Adapted(1), Adapted(3)
    names = calls_of(blocks)
    assert names[0] == names[2]
    assert names[1] == names[3]
    assert len(set(names)) == 2
    require_same(blocks, backend)


class Hidden(Block):
    """A block with an attribute that its `__dict__` does not show."""

    __slots__ = ("hidden",)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.hidden = seed

    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x * float(self.hidden)


def test_blocks_with_slots_are_captured_in_place(backend):
    blocks = [Hidden(2), Hidden(3)]
    assert calls_of(blocks) == []
    require_same(blocks, backend)


def test_other_types_of_weights_make_other_functions():
    blocks = [Block(0), Block(1)]
    blocks[1].layer.bias = F.cast(blocks[1].layer.bias, dtypes.f32) * 2
    blocks[1].layer.bias.numpy()
    assert len(set(calls_of(blocks))) == 1
    wide = Block(2)
    wide.norm = gptrs.tensor(np.ones((3, WIDTH), np.float32))
    assert len(set(calls_of([*blocks, wide]))) == 2


def test_shared_weights_are_not_taken_for_different_ones(backend):
    blocks = [Block(0), Block(1), Block(2)]
    blocks[1].norm = blocks[1].layer.bias
    assert len(set(calls_of(blocks))) == 2
    require_same(blocks, backend)


def _with_hook(block: Block) -> None:
    plain = block.layer

    def hooked(x: Tensor) -> Tensor:
        return plain(x) * 2

    block.layer = hooked  # pyright: ignore[reportAttributeAccessIssue]


def _with_object(block: Block) -> None:
    class Doubling:
        def __call__(self, x: Tensor) -> Tensor:
            return x * 2

    block.activation = Doubling()


def _with_partial(block: Block) -> None:
    block.activation = functools.partial(F.gelu, approximate="tanh")


@pytest.mark.parametrize("change", [_with_hook, _with_object, _with_partial])
def test_what_is_not_understood_is_captured_in_place(change, backend):
    blocks = [Block(seed) for seed in range(3)]
    change(blocks[1])
    names = calls_of(blocks)
    assert len(names) == 2
    require_same(blocks, backend)


class Remembering(Block):
    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        self.seen = x
        return super().__call__(x)


def test_a_block_that_sets_attributes_is_captured_in_place():
    blocks: list[Block] = [Remembering(0), Remembering(1)]
    program = gptrs.jit(lambda x: through(blocks, x)).lower(gptrs.tensor(X))
    blocks_and_main = [f.name for f in program.functions if f.name not in decompositions(program)]
    assert [name.partition("_")[0] for name in blocks_and_main] == ["Remembering", "main"]
    assert all(isinstance(vars(block)["seen"], Tensor) for block in blocks)


class Deciding(Block):
    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x * 2 if self.layer.bias.numpy()[0] > 0 else x - 1


def test_a_block_that_reads_its_weights_decides_for_each_layer(backend):
    blocks: list[Block] = [Deciding(0), Deciding(1), Deciding(0)]
    assert calls_of(blocks) == []
    require_same(blocks, backend)


OUTSIDE = gptrs.tensor(np.full(WIDTH, 3, np.float32))


class Closing(Block):
    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x * OUTSIDE + self.norm


def test_a_block_that_uses_tensors_from_elsewhere_is_captured_in_place(backend):
    blocks: list[Block] = [Closing(0), Closing(1)]
    assert calls_of(blocks) == []
    require_same(blocks, backend)


def test_overrides_count():
    blocks = [Block(0), Block(1)]

    def run(x: Tensor) -> Tensor:
        x = blocks[0](x)
        with gptrs.overrides({"silu": "halved_for_test"}):
            return blocks[1](x)

    with implemented("silu", {"halved_for_test": lambda x: x / 2}):
        program = gptrs.jit(run).lower(gptrs.tensor(X))
    assert len(program.functions) - len(decompositions(program)) == 3


def test_an_error_is_that_of_the_block():
    blocks = [Block(0), Block(1)]
    blocks[1].layer.weight = gptrs.tensor(np.ones((WIDTH, 5), np.float32))
    with pytest.raises(UsageError, match="`linear`"):
        calls_of(blocks)


class Attending(Module):
    def __init__(self, seed: int) -> None:
        self.layer = Layer(seed)

    @captured_once
    def __call__(self, x: Tensor, cache: LayerCache) -> Tensor:
        heads = F.reshape(self.layer(x), (x.shape[0], 2, WIDTH // 2))
        return x + F.reshape(cache.attend(heads, heads, heads), x.shape)


def test_caches_are_updated(backend):
    layers = [Attending(seed) for seed in range(3)]
    specs = [CacheSpec(2, WIDTH // 2, window) for window in (None, 2, None)]

    def run(step, pools, plain: bool):
        groups = (0, 1, 0)
        caches = [
            LayerCache(pair, step, group, spec.window)
            for pair, group, spec in zip(pools, groups, specs, strict=True)
        ]
        x = F.reshape(F.cast(step.tokens, dtypes.f32), (step.tokens.shape[0], 1)) * OUTSIDE
        for layer, cache in zip(layers, caches, strict=True):
            call = inspect.unwrap(type(layer).__call__) if plain else Attending.__call__
            x = call(layer, x, cache)
        return x, [cache.pools for cache in caches]

    step = as_tensors(ragged_step(np.arange(5)[None], [0], [own_pages(1, 5)] * 2))
    results: list[list[np.ndarray]] = []
    for plain in (False, True):
        with gptrs.use_backend(backend):
            buffers = PageBuffers(specs, [1, 1])
            compiled = gptrs.jit(run, donate="pools")
            if not plain:
                program = compiled.lower(step, buffers.pools, plain)
                calls = [step.op for step in program.main.body.walk() if isinstance(step.op, Call)]
                assert len({call.function for call in calls}) == 2, "the window is another function"
            x, pools = compiled(step, buffers.pools, plain)
            results.append([x.numpy(), *(pool.numpy() for pair in pools for pool in pair)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
