"""Fusions of depthwise convolutions of large images with their neighbours, some rows at a time.

A depthwise convolution does little with each number: where the image before or after it is larger
than the cache, most of the time goes into moving it. So the layer before it and the 1x1 layer
after it are taken together with it: what is between them stays in the cache.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir.attributes import Dictionary, DictionaryValue
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Binary, Cast, Clamp, Unary
from gptrs.ir.ops.layout import BroadcastTo, Concat, Reshape, Transpose
from gptrs.ir.ops.reduction import Reduce
from gptrs.ir.ops.window import ReduceWindow
from gptrs.ir.program import Region, Value
from gptrs.ir.size_guards import Shape, usual_size
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs_backend_numba.schedule import BF16_CONV2D, CHAIN, CONV2D, DEPTHWISE, ROUNDED_CHAIN

_LARGE = 1 << 17
"""Bytes of an image from which it does not stay in the cache until the next layer reads it."""


class _Chain(Struct, frozen=True):
    nodes: tuple[InstructionNode, ...]

    def attributes(self) -> Dictionary:
        """Return the attributes of the calls, numbered, with their targets and result shapes."""
        found: dict[str, DictionaryValue] = {"stages": len(self.nodes)}
        for number, node in enumerate(self.nodes):
            op = node.op
            assert isinstance(op, CustomCall)
            own = {name: op.attrs[name] for name in op.attrs}
            own |= {"target": op.target, "shape": node.results[0].type.shape}
            found |= {f"{name}_{number}": value for name, value in own.items()}
        return Dictionary.of(found)

    def operands(self) -> list[Value]:
        """Return the image, then the other operands of each call."""
        first = self.nodes[0].operands[0]
        return [first, *(value for node in self.nodes for value in node.operands[1:])]


def chained_convolutions(region: Region) -> Region:
    """Return the region with one call for each depthwise layer and its neighbours."""
    rewriter = Rewriter(region)
    returned = frozenset(region.results)
    for node in list(rewriter):
        if not node.erased and _target(node) == DEPTHWISE:
            nodes = (*_before(node, rewriter, returned), node, *_after(node, rewriter, returned))
            if len(nodes) > 1 and all(map(_keeps_rows, nodes)):
                _put(_Chain(nodes), rewriter)
    return rewriter.region()


def rounded_chains(region: Region) -> Region:
    """Return the region with one call for rounded layers that alone read one another's result."""
    rewriter = Rewriter(region)
    returned = frozenset(region.results)
    for node in list(rewriter):
        if node.erased or _target(node) != BF16_CONV2D:
            continue
        nodes = [node]
        while (reader := _reader(nodes[-1], rewriter, returned)) is not None:
            nodes.append(reader)
        if len(nodes) > 1:
            _put(_Chain(tuple(nodes)), rewriter, ROUNDED_CHAIN)
    return rewriter.region()


ROUNDED_CHAINS = RegionPass("numba-rounded-chains", rounded_chains)
"""For the precision `bf16`, to run when convolutions are rounded."""


def _reader(
    node: InstructionNode, rewriter: Rewriter, returned: frozenset[Value]
) -> InstructionNode | None:
    """Return the rounded layer that alone reads the result of a layer without a residual."""
    (image,) = node.results
    users = rewriter.users(image)
    if image in returned or len(users) != 1 or not image.type.is_static:
        return None
    (user,) = users
    alone = _target(user) == BF16_CONV2D and user.operands.count(image) == 1
    if not alone or user.operands[0] is not image:
        return None
    assert isinstance(node.op, CustomCall)
    return None if node.op.attrs["residual"] else user


def _target(node: InstructionNode) -> str | None:
    return node.op.target if isinstance(node.op, CustomCall) else None


def _before(
    node: InstructionNode, rewriter: Rewriter, returned: frozenset[Value]
) -> tuple[InstructionNode, ...]:
    """Return the layer whose large result only the node reads."""
    image = node.operands[0]
    made = rewriter.definition(image)
    if made is None or _target(made) != CONV2D or not _between(image, rewriter, returned):
        return ()
    op = made.op
    assert isinstance(op, CustomCall)
    # Where images keep their size, a window of more than a position has a faster algorithm.
    direct = op.attrs["window"] == (1, 1) or op.attrs["stride"] != (1, 1)
    return (made,) if direct and not op.attrs["residual"] else ()


def _after(
    node: InstructionNode, rewriter: Rewriter, returned: frozenset[Value]
) -> tuple[InstructionNode, ...]:
    """Return the 1x1 layer that is the only reader of the large result of the node."""
    op = node.op
    assert isinstance(op, CustomCall)
    (image,) = node.results
    if op.attrs["residual"] or not _between(image, rewriter, returned):
        return ()
    (user,) = rewriter.users(image)
    if _target(user) != CONV2D or user.operands.index(image) != 0:
        return ()
    assert isinstance(user.op, CustomCall)
    plain = (user.op.attrs["window"], user.op.attrs["stride"]) == ((1, 1), (1, 1))
    return (user,) if plain and not any(_padding(user)) else ()


def _between(image: Value, rewriter: Rewriter, returned: frozenset[Value]) -> bool:
    """Return whether the image is large and read once."""
    users = rewriter.users(image)
    once = len(users) == 1 and users[0].operands.count(image) == 1 and image not in returned
    return once and usual_size(image.type.nbytes) >= _LARGE


def _padding(node: InstructionNode) -> tuple[int, ...]:
    assert isinstance(node.op, CustomCall)
    padding = node.op.attrs["padding"]
    assert isinstance(padding, tuple)
    return padding


def _keeps_rows(node: InstructionNode) -> bool:
    """Return whether every window meets the image: no row of a result is made of padding alone."""
    assert isinstance(node.op, CustomCall)
    window, dilation = node.op.attrs["window"], node.op.attrs["dilation"]
    assert isinstance(window, tuple)
    assert isinstance(dilation, tuple)
    reach = (window[0] - 1) * dilation[0]
    return max(_padding(node)[:2]) <= reach < node.operands[0].type.shape[1]


def _put(chain: _Chain, rewriter: Rewriter, target: str = CHAIN) -> None:
    root = chain.nodes[-1]
    (result,) = root.results
    op = CustomCall(target, (result.type,), chain.attributes())
    made = rewriter.insert(op, chain.operands(), root)
    rewriter.replace(result, made.results[0])
    for node in reversed(chain.nodes):
        rewriter.erase(node)


# Lets images stay channels-last between layers of a program that has them channels-first.
#
# Imported networks turn every image around for a convolution and back behind it. What is computed
# of each element meanwhile does as well on the image as the convolution left it: then two turns
# meet and vanish, and the elementwise ops are next to the convolution, which takes them as its
# epilogue.


_EXTREMES: Final = ("max", "min")


def _first(rank: int) -> Shape:
    """Return the permutation that brings channels forward, [N, spatial.., C] -> [N, C, spatial..].

    Of images and sequences; for other ranks one that no `Transpose` has.
    """
    return (0, rank - 1, *range(1, rank - 1)) if rank in (3, 4) else ()


def _last(rank: int) -> Shape:
    """Return the permutation that undoes it."""
    return (0, *range(2, rank), 1)


def with_channels_last(region: Region) -> Region:
    """Return the region with elementwise ops of images before the turn, not after it."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        if not node.erased and len(node.results) == 1:
            _change(node, rewriter)
    return rewriter.region()


CHANNELS_LAST = RegionPass("numba-channels-last", with_channels_last)
"""To run before the fusion of convolutions."""


def _change(node: InstructionNode, rewriter: Rewriter) -> None:
    op = node.op
    if isinstance(op, Transpose):
        _meet(node, op, rewriter)
    elif isinstance(op, DotGeneral):
        _contract_last(node, op, rewriter)
    elif isinstance(op, Reduce):
        _reduce_whole(node, op, rewriter)
    elif isinstance(op, ReduceWindow):
        _pool_last(node, op, rewriter)
    elif isinstance(op, Unary | Binary | Cast | Clamp | Concat):
        _compute_before(node, op, rewriter)


def _meet(node: InstructionNode, op: Transpose, rewriter: Rewriter) -> None:
    """Drop a turn back of what was turned."""
    image = _turned(node.operands[0], rewriter)
    if image is not None and op.permutation == _last(image.type.rank):
        rewriter.replace(node.results[0], image)
        rewriter.erase_dead(node)


def _contract_last(node: InstructionNode, op: DotGeneral, rewriter: Rewriter) -> None:
    """Let a product over the channels of a turned image read the image."""
    image = _turned(node.operands[0], rewriter)
    if image is not None and op.contract_lhs == (1,) and not op.batch_lhs:
        last = (image.type.rank - 1,)
        made = rewriter.insert(replace(op, contract_lhs=last), [image, node.operands[1]], node)
        rewriter.replace(node.results[0], made.results[0])
        rewriter.erase_dead(node)


def _reduce_whole(node: InstructionNode, op: Reduce, rewriter: Rewriter) -> None:
    """Take the largest or least number of the image, not of the turned one."""
    image = _turned(node.operands[0], rewriter)
    if image is None or op.kind not in _EXTREMES or op.keepdims:
        return
    if op.axes == tuple(range(image.type.rank)):
        made = rewriter.insert(op, [image], node)
        rewriter.replace(node.results[0], made.results[0])
        rewriter.erase_dead(node)


def _pool_last(node: InstructionNode, op: ReduceWindow, rewriter: Rewriter) -> None:
    """Let windows that take extremes, which are the same in any order, slide over the image."""
    image = _turned(node.operands[0], rewriter)
    if image is None or op.kind not in _EXTREMES:
        return
    last = _last(image.type.rank)
    window, strides, dilation = (
        None if sizes is None else tuple(sizes[axis] for axis in last)
        for sizes in (op.window, op.strides, op.dilation)
    )
    padding = op.padding and tuple(op.padding[2 * axis + side] for axis in last for side in (0, 1))
    assert window is not None, "a pool has a window"
    turned = replace(op, window=window, strides=strides, padding=padding, dilation=dilation)
    made = rewriter.insert(turned, [image], node)
    back = rewriter.insert(Transpose(_first(image.type.rank)), made.results, node)
    rewriter.replace(node.results[0], back.results[0])
    rewriter.erase_dead(node)


def _compute_before(node: InstructionNode, op: Op, rewriter: Rewriter) -> None:
    """Compute of images what is computed of turned ones, and turn the result."""
    (result,) = node.results
    if result.type.rank not in (3, 4):
        return
    if not any(_turned(value, rewriter) is not None for value in node.operands):
        return
    first = _first(result.type.rank)
    images = _images(node, rewriter)
    if images is None:
        return
    if isinstance(op, Concat):
        op = Concat(first[op.axis])
    made = rewriter.insert(op, images, node)
    turned = rewriter.insert(Transpose(first), made.results, node)
    rewriter.replace(result, turned.results[0])
    rewriter.erase_dead(node)


def _turned(value: Value, rewriter: Rewriter) -> Value | None:
    """Return the image that `value` is the turned one of, None if it is none."""
    node = rewriter.definition(value)
    if node is None or not isinstance(node.op, Transpose):
        return None
    if node.op.permutation != _first(value.type.rank):
        return None
    return node.operands[0]


def _images(node: InstructionNode, rewriter: Rewriter) -> list[Value] | None:
    """Return all operands with their channels last, None unless that costs nothing."""
    sources = [_source(value, rewriter) for value in node.operands]
    found: list[Value] = []
    for value, source in zip(node.operands, sources, strict=True):
        if source is None:
            return None
        n, c, *spatial = value.type.shape
        found.append(_repeated(*source, (n, *spatial, c), node, rewriter))
    return found


def _source(value: Value, rewriter: Rewriter) -> tuple[Value, Shape] | None:
    """Return what gives an operand its channels last, and the shape it is taken in.

    It is an image that was turned, or what is repeated for all positions: a number, or one number
    a channel. None if it is something else.
    """
    image = _turned(value, rewriter)
    if image is None:
        node = rewriter.definition(value)
        if node is None or not isinstance(node.op, BroadcastTo):
            return None
        (small,) = node.operands
        image = _turned(small, rewriter)
        if image is None:
            shape = _shape_of_channels(small.type.shape, value.type.rank)
            return None if shape is None else (small, shape)
    return image, image.type.shape


def _shape_of_channels(shape: Shape, rank: int) -> Shape | None:
    """Return `()` for that of one number, `(C,)` for one number a channel of [N, C, spatial..]."""
    if all(size == 1 for size in shape):
        return ()
    channels = shape[1 - rank] if len(shape) >= rank - 1 else 1
    return (channels,) if math.prod(shape) == channels else None


def _repeated(
    value: Value, own: Shape, shape: Shape, before: InstructionNode, rewriter: Rewriter
) -> Value:
    """Return a value, taken in the shape `own`, as one of `shape`."""
    if value.type.shape != own:
        value = rewriter.insert(Reshape(own), [value], before).results[0]
    if own != shape:
        value = rewriter.insert(BroadcastTo(shape), [value], before).results[0]
    return value
