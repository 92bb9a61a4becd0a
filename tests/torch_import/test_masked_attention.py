"""Attention of torch whose rows may see nothing: compiled, and in programs, as eager has it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as nnf  # noqa: E402

import gptrs_torch  # noqa: E402
from gptrs.api.backends import Backend  # noqa: E402
from gptrs_torch import partition  # noqa: E402
from gptrs_torch.dynamo import table  # noqa: E402
from gptrs_torch.graph import GraphFunction  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.whole]

attend = nnf.scaled_dot_product_attention
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}
KEYS = 6


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def heads(length: int, dtype: str, count: int = 4) -> Any:
    return torch.randn(2, count, length, 8).to(getattr(torch, dtype))


def hidden(length: int, kind: str, dtype: str) -> Any:
    """A mask with rows that see nothing in both texts, one of them its first, one its last."""
    seen = torch.rand(2, 1, length, KEYS) < 0.5
    seen[0, 0, 0] = seen[1, 0, -1] = False
    if kind == "i1":
        return seen
    type_ = getattr(torch, dtype)
    number = float("-inf") if kind == "-inf" else torch.finfo(type_).min
    return torch.zeros(2, 1, length, KEYS, dtype=type_).masked_fill(~seen, number)


def masked(q: Any, k: Any, m: Any) -> Any:
    return attend(q, k, k.flip(-1), attn_mask=m)


def shared(q: Any, k: Any, m: Any) -> Any:
    return attend(q, k[:, :2], k[:, 2:], attn_mask=m, enable_gqa=True)


def of_one_head(q: Any, k: Any, m: Any) -> Any:
    return attend(q[:, 0], k[:, 0], k[:, 1], attn_mask=m[:, 0])


def written_out(q: Any, k: Any, m: Any) -> Any:
    scores = q @ k.mT * 0.3
    shown = scores.masked_fill(~m, float("-inf")) if m.dtype is torch.bool else scores + m
    return torch.softmax(shown, -1) @ k


def made_safe(q: Any, k: Any, m: Any) -> Any:
    scores = (q @ k.mT * 0.3).masked_fill(~m, float("-inf"))
    return torch.ops.aten._safe_softmax(scores, -1) @ k


def from_the_start(q: Any, k: Any) -> Any:
    return attend(q, k, k, is_causal=True)


def of_nothing(q: Any, k: Any) -> Any:
    return attend(q, k[:, :, :0], k[:, :, :0])


KINDS_OF_SOFTMAX = (masked, written_out, made_safe)


def cases() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Functions with their arguments, few queries and a panel of them."""
    for dtype in TOLERANCE:
        for length in (1, 9):
            q, k = heads(length, dtype), heads(KEYS, dtype)
            for kind in ("i1", "-inf", "least"):
                yield dtype, masked, (q, k, hidden(length, kind, dtype))
            for function in (shared, of_one_head, written_out, made_safe):
                yield dtype, function, (q, k, hidden(length, "i1", dtype))
            yield dtype, written_out, (q, k, hidden(length, "-inf", dtype))
            for function in (from_the_start, of_nothing):
                yield dtype, function, (q, k)


def require_close(found: Any, wanted: Any, dtype: str, what: str) -> None:
    bound = TOLERANCE[dtype]
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(
        found, wanted, atol=bound, rtol=bound, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def test_programs_give_what_eager_gives(backend: Backend) -> None:
    for dtype, function, arguments in cases():
        if backend.name != "ref" and (dtype != "float32" or function not in KINDS_OF_SOFTMAX):
            continue  # its kernels have tests of their own, and each compiles for long
        wanted = function(*arguments)
        traced = make_fx(function, table(), "fake")(*arguments)
        (found,) = GraphFunction(traced, backend)(*arguments)
        require_close(found, wanted, dtype, f"{function.__name__} of {dtype}")


@pytest.mark.parametrize("taken_apart", [False, True])
def test_exported_programs_give_what_eager_gives(taken_apart: bool) -> None:
    class Model(nn.Module):
        def forward(self, q: Any, k: Any, i1: Any, added: Any) -> tuple[Any, ...]:
            return (
                masked(q, k, i1), masked(q, k, added), shared(q, k, i1), made_safe(q, k, i1),
                written_out(q, k, added), from_the_start(q, k),
            )  # fmt: skip

    arguments = heads(4, "float32"), heads(KEYS, "float32"), *(
        hidden(4, kind, "float32") for kind in ("i1", "-inf")
    )  # fmt: skip
    exported = torch.export.export(Model().eval(), arguments)
    if taken_apart:
        exported = exported.run_decompositions()
    results = gptrs_torch.load(exported, backend="ref")(*(each.numpy() for each in arguments))
    for found, wanted in zip(results.values(), Model()(*arguments), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5, rtol=1e-5)
        assert np.isnan(found).any() == bool(wanted.isnan().any())


@pytest.mark.parametrize("weights", [False, True])
def test_layers_with_padded_texts(weights: bool) -> None:
    layer = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    padding = torch.tensor([[True] * 5, [False] * 3 + [True] * 2])

    def attended(x: Any, padding: Any) -> Any:
        return layer(x, x, x, key_padding_mask=padding, need_weights=weights)[0]

    x = torch.randn(2, 5, 16)
    wanted = attended(x, padding).detach()  # without a gradient torch takes another way: NaN
    with torch.no_grad():
        found = torch.compile(attended, backend="gptrs", options={"backend": "ref"})(x, padding)
    require_close(found, wanted, "float32", f"weights: {weights}")


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers_leave_nothing_to_torch(
    norm_first: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In inference, torch has one operator for a layer; rows that may see nothing are NaN in it."""
    kind = "gelu" if norm_first else "relu"
    model = nn.TransformerEncoderLayer(8, 2, 16, 0.0, kind, batch_first=True, norm_first=norm_first)
    padded = torch.tensor([[False, False, True], [True, True, True]])
    later = torch.ones(3, 3).triu(1).bool()
    options = {"backend": "ref"}
    fast = torch.compile(model.eval(), backend="gptrs", options=options, dynamic=norm_first)
    monkeypatch.setattr(partition, "_said", set())
    warnings.simplefilter("error", UserWarning)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"):
        for masks in ({}, {"src_mask": later}, {"src_key_padding_mask": padded}):
            x = torch.randn(2, 3, 8)
            found, wanted = fast(x, **masks), model(x, **masks)
            torch.testing.assert_close(found, wanted, equal_nan=True)
    assert not [each for each in caplog.records if each.name == "gptrs"]


class _Attends(nn.Module):
    def forward(self, q: Any, k: Any, m: Any) -> Any:
        return attend(q, k, k.flip(-1), m), attend(q, k, k.flip(-1), is_causal=True)


def test_attention_with_more_axes_than_batch_and_heads_is_loaded_from_programs() -> None:
    seen = torch.rand(2, 1, 2, 5, 6) < 0.7
    for mask in (seen, seen[0, 0].float(), seen[0].expand(3, 2, 5, 6), seen[0, 0, 0]):
        given = torch.randn(2, 3, 2, 5, 4), torch.randn(2, 3, 2, 6, 4), mask
        program = torch.export.export(_Attends(), given)
        found = gptrs_torch.load(program, "ref").module(*given)
        torch.testing.assert_close(found, _Attends()(*given))
