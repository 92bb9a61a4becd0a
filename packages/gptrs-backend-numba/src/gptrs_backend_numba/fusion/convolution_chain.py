"""Fusions of depthwise convolutions of large images with their neighbours, some rows at a time.

A depthwise convolution does little with each number: where the image before or after it is larger
than the cache, most of the time goes into moving it. So the layer before it and the 1x1 layer
after it are taken together with it: what is between them stays in the cache.
"""

from __future__ import annotations

from gptrs.ir.dictionary import Dictionary, DictionaryValue
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Region, Value
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.convolution_targets import CHAIN, CONV2D, DEPTHWISE

_LARGE = 1 << 17
"""Bytes of an image from which it does not stay in the cache until the next layer reads it."""


@dataclass(frozen=True)
class _Chain:
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
    """Return the region with one call in the place of each depthwise layer and its neighbours."""
    rewriter = Rewriter(region)
    returned = frozenset(region.results)
    for node in list(rewriter):
        if not node.erased and _target(node) == DEPTHWISE:
            nodes = (*_before(node, rewriter, returned), node, *_after(node, rewriter, returned))
            if len(nodes) > 1 and all(map(_keeps_rows, nodes)):
                _put(_Chain(nodes), rewriter)
    return rewriter.region()


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
    return once and image.type.nbytes >= _LARGE


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


def _put(chain: _Chain, rewriter: Rewriter) -> None:
    root = chain.nodes[-1]
    (result,) = root.results
    op = CustomCall(CHAIN, (result.type,), chain.attributes())
    made = rewriter.insert(op, chain.operands(), root)
    rewriter.replace(result, made.results[0])
    for node in reversed(chain.nodes):
        rewriter.erase(node)
