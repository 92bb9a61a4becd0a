"""Small language models as ONNX graphs, in the layouts of optimum and onnxruntime-genai."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

VOCAB, WIDTH, HEADS, KV_HEADS, HEAD, LAYERS, CONTEXT = 2048, 32, 4, 2, 16, 2, 96
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


@dataclass
class Graph:
    """Nodes in order, and the weights that they read."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def __call__(self, op: str, *inputs: str, name: str = "", **attributes: object) -> str:
        """Add a node; return its first output."""
        name = name or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def ints(self, *values: int) -> str:
        """Return a constant vector of integers."""
        return self("Constant", value_ints=list(values))

    def weight(self, *shape: int) -> str:
        """Return a random weight; the same sequence of calls gives the same weights."""
        name = f"w{len(self.weights)}"
        values = self.random.standard_normal(shape).astype(np.float32) * 0.25
        self.weights.append(onnx.numpy_helper.from_array(values, name))
        return name


def _size(g: Graph, value: str, axis: int) -> str:
    return g("Gather", g("Shape", value), g.ints(axis))


def _scalar(g: Graph, value: str) -> str:
    return g("Squeeze", value, g.ints(0))


def _mask(g: Graph, past: str, window: int | None) -> str:
    """Return [1, 1, T, P + T], 0 where a key is seen."""
    before, new = _size(g, past, 2), _size(g, "input_ids", 1)
    whole = g("Add", before, new)
    one = _scalar(g, g.ints(1))
    keys = g("Range", _scalar(g, g.ints(0)), _scalar(g, whole), one)
    at = g("Unsqueeze", g("Range", _scalar(g, before), _scalar(g, whole), one), g.ints(1))
    seen = g("LessOrEqual", keys, at)
    if window is not None:
        oldest = g("Sub", at, _scalar(g, g.ints(window)))
        seen = g("And", seen, g("Greater", keys, oldest))
    shown = g("Constant", value_float=0.0)
    hidden = g("Constant", value_float=-3.0e38)
    return g("Unsqueeze", g("Where", seen, shown, hidden), g.ints(0, 1))


def _heads(g: Graph, x: str, count: int) -> str:
    return g("Transpose", g("Reshape", x, g.ints(0, -1, count, HEAD)), perm=[0, 2, 1, 3])


def _repeated(g: Graph, x: str) -> str:
    """Return keys or values [B, K, L, D] for each head, by sizes that the graph computes."""
    sizes = [_size(g, x, axis) for axis in range(4)]
    wide = g("Concat", *sizes[:2], g.ints(HEADS // KV_HEADS), *sizes[2:], axis=0)
    spread = g("Expand", g("Unsqueeze", x, g.ints(2)), wide)
    return g("Reshape", spread, g("Concat", sizes[0], g.ints(HEADS), *sizes[2:], axis=0))


def _positions(g: Graph) -> str:
    """Return positions [B, T] counted by the attention mask, as exporters without an input do."""
    counted = g("Sub", g("CumSum", "attention_mask", g.ints(1)), g.ints(1))
    start = g("Neg", _size(g, "input_ids", 1))
    return g("Slice", counted, start, g.ints(CONTEXT * 2), g.ints(1))


def _attention(g: Graph, x: str, layer: int, bias: str, *, tilted: bool) -> str:
    query = _heads(g, g("MatMul", x, g.weight(WIDTH, HEADS * HEAD)), HEADS)
    whole: list[str] = []
    for part in ("key", "value"):
        new = _heads(g, g("MatMul", x, g.weight(WIDTH, KV_HEADS * HEAD)), KV_HEADS)
        past, name = f"past_key_values.{layer}.{part}", f"present.{layer}.{part}"
        whole.append(g("Concat", past, new, name=name, axis=2))
    keys, values = (_repeated(g, each) for each in whole)
    scores = g("MatMul", query, g("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = g("Div", scores, g("Sqrt", g("Constant", value_float=float(HEAD))))
    if tilted:  # a bias for the distance of keys, as ALiBi has it
        length = _scalar(g, _size(g, keys, 2))
        at = g("Range", _scalar(g, g.ints(0)), length, _scalar(g, g.ints(1)))
        slope = g("Constant", value_float=0.1)
        scores = g("Add", scores, g("Mul", g("Cast", at, to=FLOAT), slope))
    mixed = g("MatMul", g("Softmax", g("Add", scores, bias), axis=-1), values)
    flat = g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]), g.ints(0, -1, HEADS * HEAD))
    return g("MatMul", flat, g.weight(HEADS * HEAD, WIDTH))


def _grouped(g: Graph, x: str, layer: int) -> str:
    """Return attention as onnxruntime-genai writes it: one operator, which turns by positions."""
    ends = g("Sub", g("ReduceSum", "attention_mask", g.ints(1), keepdims=0), g.ints(1))
    total = g("Cast", _scalar(g, _size(g, "attention_mask", 1)), to=TensorProto.INT32)
    packed = g("MatMul", x, g.weight(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD))
    angles = [g.weight(CONTEXT, HEAD // 2) for _ in range(2)]
    past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
    made = f"mixed{layer}"
    g.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [packed, "", "", *past, g("Cast", ends, to=TensorProto.INT32), total, *angles],
            [made, *(each.replace("past_key_values", "present") for each in past)],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
        )
    )
    return g("MatMul", made, g.weight(HEADS * HEAD, WIDTH))


def _fused(g: Graph, x: str, layer: int) -> str:
    """Return attention as Olive's fusions leave it: rotary positions, and a shared buffer.

    Queries, keys and values are products of their own; counts of positions are inputs.
    """
    angles = [g.weight(CONTEXT, HEAD // 2) for _ in range(2)]

    def product(heads: int) -> str:
        return g("MatMul", x, g.weight(WIDTH, heads * HEAD))

    def turned(heads: int) -> str:
        return g(
            "RotaryEmbedding",
            *(product(heads), "position_ids", *angles),
            domain="com.microsoft",
            num_heads=heads,
        )

    past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
    made = f"mixed{layer}"
    inputs = [turned(HEADS), turned(KV_HEADS), product(KV_HEADS), *past]
    g.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [*inputs, "seqlens_k", "total_sequence_length"],
            [made, *(each.replace("past_key_values", "present") for each in past)],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
        )
    )
    return g("MatMul", made, g.weight(HEADS * HEAD, WIDTH))


def _body(
    g: Graph,
    *,
    window: int | None = None,
    counted: bool = False,
    grouped: bool = False,
    fused: bool = False,
    kept: bool = False,
    tilted: bool = False,
    last: bool = False,
    smoothed: bool = False,
) -> None:
    """Add the nodes from tokens to logits."""
    x = g("Gather", g.weight(VOCAB, WIDTH), "input_ids")
    if not (grouped or fused):
        at = _positions(g) if counted else "position_ids"
        x = g("Add", x, g("Gather", g.weight(CONTEXT, WIDTH), at))
    if smoothed:  # each token with the one before it in its step
        start = g("Slice", x, g.ints(0), g.ints(-1), g.ints(1))
        first = g("Slice", x, g.ints(0), g.ints(1), g.ints(1))
        x = g("Add", x, g("Concat", first, start, axis=1))
    bias = "" if grouped or fused else _mask(g, "past_key_values.0.key", window)
    for layer in range(LAYERS):
        if grouped or fused:
            mixed = (_fused if fused else _grouped)(g, x, layer)
        else:
            mixed = _attention(g, x, layer, bias, tilted=tilted)
        x = g("Add", x, mixed)
        x = g(
            "Add",
            x,
            g("MatMul", g("Tanh", g("MatMul", x, g.weight(WIDTH, 32))), g.weight(32, WIDTH)),
        )
    if kept:  # the last rows, all of them for 0, as transformers.js asks for them
        start = g("Unsqueeze", g("Neg", "num_logits_to_keep"), g.ints(0))
        x = g("Slice", x, start, g.ints(CONTEXT * 2), g.ints(1))
    if last:
        x = g("Slice", x, g.ints(-1), g.ints(CONTEXT * 2), g.ints(1))
    g("MatMul", x, g.weight(WIDTH, VOCAB), name="logits")


def _inputs_of(settings: Mapping[str, object]) -> list[onnx.ValueInfoProto]:
    """Return the inputs of a decoder, without those for its past."""
    inputs = {"input_ids": ["B", "T"], "attention_mask": ["B", "P + T"], "position_ids": ["B", "T"]}
    if settings.get("counted") or settings.get("grouped"):
        del inputs["position_ids"]
    if settings.get("fused"):
        del inputs["attention_mask"]
    given = [helper.make_tensor_value_info(name, INT, shape) for name, shape in inputs.items()]
    if settings.get("fused"):
        counts: dict[str, list[str]] = {"seqlens_k": ["B"], "total_sequence_length": []}
        given += [
            helper.make_tensor_value_info(name, TensorProto.INT32, shape)
            for name, shape in counts.items()
        ]
    if settings.get("kept"):
        given.append(helper.make_tensor_value_info("num_logits_to_keep", INT, []))
    return given


def decoder(*, merged: bool = False, first: bool = False, **settings: object) -> onnx.ModelProto:
    """Return a decoder with its past as inputs and outputs; see `_body` for `settings`.

    `merged`: the nodes lie in both branches of an `If` on `use_cache_branch`. `first`: it has no
    inputs for a past, which is empty.
    """
    g = Graph()
    _body(g, **settings)  # pyright: ignore[reportArgumentType]
    names = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    carried = {name: ["B", KV_HEADS, "P", HEAD] for name in names}
    given = _inputs_of(settings)
    if first:
        empty = np.zeros((1, KV_HEADS, 0, HEAD), np.float32)
        g.weights += [
            onnx.numpy_helper.from_array(empty, f"past_key_values.{name}") for name in names
        ]
        carried = {}
    given += [
        helper.make_tensor_value_info(f"past_key_values.{name}", FLOAT, shape)
        for name, shape in carried.items()
    ]
    outputs = [helper.make_tensor_value_info("logits", FLOAT, ["B", "T", VOCAB])]
    outputs += [
        helper.make_tensor_value_info(f"present.{name}", FLOAT, ["B", KV_HEADS, "L", HEAD])
        for name in names
    ]
    nodes = g.nodes
    if merged:
        branches = [_branch(g.nodes, outputs, prefix) for prefix in ("a.", "b.")]
        given.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
        nodes = [
            helper.make_node(
                "If",
                ["use_cache_branch"],
                [each.name for each in outputs],
                then_branch=branches[0],
                else_branch=branches[1],
            )
        ]
    graph = helper.make_graph(nodes, "decoder", given, outputs, g.weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def in_four_bits(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose products are `MatMulNBits`, as ONNX Runtime's quantizer writes them."""
    made = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=False, bits=4)
    made.process()
    return cast("Any", made.model).model


def _branch(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[onnx.ValueInfoProto], prefix: str
) -> onnx.GraphProto:
    """Return nodes as a graph of their own, each value under another name."""
    made = {name for node in nodes for name in node.output}

    def own(name: str) -> str:
        return prefix + name if name in made else name

    copies: list[onnx.NodeProto] = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [own(name) for name in node.input]
        copy.output[:] = [own(name) for name in node.output]
        copies.append(copy)
    results: list[onnx.ValueInfoProto] = []
    for each in outputs:
        result = onnx.ValueInfoProto()
        result.CopyFrom(each)
        result.name = own(each.name)
        results.append(result)
    return helper.make_graph(copies, f"branch_{prefix[0]}", [], results)


CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": CONTEXT,
    "vocab_size": VOCAB,
    "eos_token_id": 0,
}
GENAI = {
    "model": {
        "type": "llama",
        "context_length": CONTEXT,
        "vocab_size": VOCAB,
        "eos_token_id": [0],
        "decoder": {"filename": "text.onnx", "num_attention_heads": HEADS, "head_size": HEAD},
    },
    "search": {
        **{"do_sample": False, "temperature": 0.5, "top_k": 3, "no_repeat_ngram_size": 2},
        **{"max_length": CONTEXT, "past_present_share_buffer": True, "random_seed": -1},
    },
}


def folder(
    at: Path, model: onnx.ModelProto, name: str = "model.onnx", *, genai: bool = False
) -> Path:
    """Write a model with settings and the tokenizer of the demo model; return the folder."""
    (at / name).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, at / name)
    settings = GENAI if genai else CONFIG
    (at / ("genai_config.json" if genai else "config.json")).write_text(json.dumps(settings))
    demo = files("gptrs_models") / "demo"
    for each in ("tokenizer.json", "tokenizer_config.json"):
        if (demo / each).is_file():
            shutil.copy(str(demo / each), at / each)
    return at


class OrtLoop:
    """The same model as ONNX Runtime runs it, one text at a time."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]

    def logits(self, tokens: Sequence[int], steps: Sequence[int]) -> list[np.ndarray]:
        """Return the logits [V] after each step; a step has so many tokens."""
        past = {
            name: np.zeros((1, KV_HEADS, 0, HEAD), np.float32)
            for name in self._inputs
            if name.startswith("past")
        }
        found: list[np.ndarray] = []
        at = 0
        for count in steps:
            given = {
                "input_ids": np.array([tokens[at : at + count]], np.int64),
                "attention_mask": np.ones((1, at + count), np.int64),
                "position_ids": np.arange(at, at + count)[None],
                "use_cache_branch": np.array([at > 0]),
                "seqlens_k": np.array([at + count - 1], np.int32),
                "total_sequence_length": np.array(at + count, np.int32),
                "num_logits_to_keep": np.array(0),
                **past,
            }
            run = self._session.run(None, {name: given[name] for name in self._inputs})
            outputs = dict(zip(self._outputs, run, strict=True))
            past = {name: outputs[name.replace("past_key_values", "present")] for name in past}
            found.append(np.asarray(outputs["logits"])[0, -1])
            at += count
        return found

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return the tokens that continue a prompt."""
        tokens = list(prompt)
        for made in range(count):
            steps = [len(prompt), *[1] * made]
            tokens.append(int(self.logits(tokens, steps)[-1].argmax()))
        return tokens[len(prompt) :]
