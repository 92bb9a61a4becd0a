"""Run nodes of ONNX on odd inputs, and compare with ONNX Runtime and onnx's reference.

A result is right if one of both gives it and the other differs for a reason that is known.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

import gptrs_onnx
from fuzzing.learned_nodes import learned_kinds
from fuzzing.onnx_nodes import FLAVOURS, NodeKind, standard_kinds
from fuzzing.runtime_nodes import runtime_kinds
from gptrs.errors import ExecutionError, GptrsError, UnsupportedError
from gptrs_backend_numba.codegen.byte_vectors import HAS_DOTS

Results = list[np.ndarray] | None


@dataclass(frozen=True)
class Known:
    """A difference from peers that is no flaw of ours: in which operators, and why."""

    peers: str
    ops: str
    why: str
    flavours: Collection[str] = FLAVOURS
    types: str = ""
    """What the name of the type that is tried contains."""

    def covers(self, peers: Collection[str], op: str, dtype: str, flavour: str) -> bool:
        """Return whether it says why all these peers differ."""
        fits = op in self.ops.split() and flavour in self.flavours and self.types in dtype
        return fits and all(peer in self.peers for peer in peers)


RUNTIME: Final = "ONNX Runtime"
REFERENCE: Final = "onnx's reference"
BOTH: Final = f"{RUNTIME}, {REFERENCE}"
ODD: Final = ("strange",)
_SATURATED: Final = "" if HAS_DOTS else RUNTIME
KNOWN: Final = (
    Known(_SATURATED, "MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul QLinearConv QGemm"
          " QAttention DynamicQuantizeLSTM", "without VNNI, sums of codes saturate"),
    Known(RUNTIME, "ReduceMax ReduceMin ArgMax ArgMin GlobalMaxPool LogSoftmax ReduceLogSumExp",
          "whether a NaN counts depends on its place", ODD),
    Known(RUNTIME, "ReduceSum ReduceProd ReduceMean",
          "integers are summed as floats, and saturate", types="int"),
    Known(RUNTIME, "Normalizer", "whether a NaN is the greatest depends on its place", ODD),
    Known(RUNTIME, "LabelEncoder", "NaN is no key, as in the operator sets from 4 on", ODD),
    Known(RUNTIME, "Clip", "an end that is left out is its largest number, not infinity", ODD),
    Known(REFERENCE, "Softmax LogSoftmax Hardmax", "it has the newest operator set alone"),
    Known(REFERENCE, "RNN GRU LSTM", "it leaves out lengths and directions"),
    Known(REFERENCE, "LRN", "its window of channels is another one"),
    Known(REFERENCE, "LpNormalization", "with p = 1 it sums without signs taken away"),
    Known(REFERENCE, "MaxPool", "its indices do not count the channels"),
    Known(REFERENCE, "GridSample Resize", "cubic weights outside are cut in another way"),
    Known(REFERENCE, "AveragePool LpPool Conv ReduceLogSumExp",
          "zeros beside the window are multiplied with infinities", ODD),
    Known(BOTH, "Cast QuantizeLinear DynamicQuantizeLinear",
          "the standard leaves open what integer a NaN or an infinity is", ODD),
    Known(BOTH, "MaxPool ScatterElements ScatterND Hardmax",
          "the standard leaves open what a NaN is among others; ours is the greatest", ODD),
    Known(BOTH, "ReduceMean", "the standard leaves open how a sum of integers overflows",
          ("large",), "int"),
    Known(BOTH, "Resize GridSample LRN",
          "our weights of 0 spread a NaN or an infinity to other elements", ODD),
    Known(BOTH, "RNN GRU LSTM", "clamped infinities are another NaN on the way", ODD),
)  # fmt: skip


def kinds() -> list[NodeKind]:
    """Return all kinds of nodes that are tried."""
    return [*standard_kinds(), *runtime_kinds(), *learned_kinds()]


def main(arguments: list[str] | None = None) -> int:
    """Try all nodes as `arguments` say and print what came of it; 1 if a result was wrong."""
    options = _parser().parse_args(arguments)
    flaws: list[str] = []
    for backend in options.backends.split(","):
        started, outcomes = time.monotonic(), Counter[str]()
        for seed in range(options.seed, options.seed + options.rounds):
            for outcome, what in outcomes_of(backend, seed, everything=True):
                outcomes[outcome] += 1
                if outcome == "wrong":
                    flaws.append(what)
                    print(f"{backend}, seed {seed}: {what}", flush=True)
        listed = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        print(f"{backend}: {listed}, in {time.monotonic() - started:.0f} s", flush=True)
    return 1 if flaws else 0


def outcomes_of(backend: str, seed: int, *, everything: bool) -> Iterator[tuple[str, str]]:
    """Yield what came of nodes, and for a wrong result what is wrong: all variants, or one each."""
    rng = np.random.default_rng(seed)
    for kind in kinds():
        variants = list(kind.variants())
        chosen = variants if everything else [variants[int(rng.integers(len(variants)))]]
        for dtype, attributes in chosen:
            label = f"{kind.op} {dtype} {attributes}"
            own = np.random.default_rng([seed, zlib.crc32(label.encode())])
            flavour = kind.flavours[int(own.integers(len(kind.flavours)))]
            inputs = kind.arrays(dtype, flavour, own)
            with np.errstate(all="ignore"):
                outcome, why = _outcome(kind, dtype, flavour, attributes, inputs, backend)
            yield outcome, f"{label}, {flavour}: {why}\n  {inputs}" if outcome == "wrong" else label


def _outcome(
    kind: NodeKind,
    dtype: str,
    flavour: str,
    attributes: dict[str, Any],
    inputs: dict[str, np.ndarray],
    backend: str,
) -> tuple[str, str]:
    proto = kind.model(dtype, attributes)
    wanted = {RUNTIME: _by_runtime(proto, inputs)}
    if not kind.domain:  # of other domains the reference has its own readings
        wanted[REFERENCE] = _by_reference(proto, inputs)
    known = {name: each for name, each in wanted.items() if each is not None}
    if not known:
        return "without a peer", ""
    try:
        found = list(gptrs_onnx.from_proto(proto, backend)(**inputs).values())
    except UnsupportedError:
        return "refused", ""
    except ExecutionError:
        return "stopped", ""
    except GptrsError as error:
        return "wrong", str(error)
    differ = [name for name, each in known.items() if not _equal(found, each)]
    if not differ:
        return "right", ""
    if any(each.covers(differ, kind.op, dtype, flavour) for each in KNOWN):
        return "right for a known reason", ""
    return "wrong", f"{found} differs from {' and '.join(f'{n}: {known[n]}' for n in differ)}"


def _by_runtime(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Results:
    """Return what ONNX Runtime gives, None if it cannot."""
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session: Any = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        return [np.asarray(each) for each in session.run(None, inputs)]
    except Exception:
        return None


def _by_reference(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Results:
    """Return what onnx's reference gives, None if it cannot."""
    try:
        evaluator: Any = ReferenceEvaluator(proto)
        return [np.asarray(each) for each in evaluator.run(None, inputs)]
    except Exception:
        return None


def _equal(found: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    return all(map(_close, found, wanted))


def _close(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether arrays agree to the rounding of their type, at the scale of the largest."""
    if found.dtype.kind == "V" and wanted.dtype == np.uint8:  # bits of types that NumPy lacks
        wanted = wanted.view(found.dtype)
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return False
    if found.dtype.kind in "iub":
        return np.array_equal(found, wanted)
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    loose = {8: 1e-6, 4: 1e-4, 2: 4e-3}.get(found.dtype.itemsize, 0.1)
    scale = np.max(np.abs(other), initial=1.0, where=np.isfinite(other))
    return np.allclose(one, other, loose, 0.1 * loose * scale, equal_nan=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="how often, with other inputs")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--backends", default="ref", help="comma list")
    return parser


if __name__ == "__main__":
    sys.exit(main())
