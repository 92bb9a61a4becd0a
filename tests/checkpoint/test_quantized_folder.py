"""Folders that GPTQ, AWQ, compressed-tensors and others wrote: each element by its formula."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import gptrs
from gptrs.checkpoint.params import Params
from gptrs.errors import CheckpointError, ModelError
from gptrs.nn import ExpertMatrices
from gptrs_backend_ref.backend import create
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.made_tensors import MadeTensors

ROWS, COLUMNS, GROUP = 16, 64, 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Made = tuple[dict[str, np.ndarray], np.ndarray]
Settings = Mapping[str, object]


def words(codes: np.ndarray, bits: int, order: tuple[int, ...] = ()) -> np.ndarray:
    """Pack codes [N, n] into int32 [N, n * bits / 32], one after another."""
    count = 32 // bits
    packed = np.zeros((codes.shape[0], codes.shape[1] // count), np.uint32)
    for column in range(packed.shape[1]):
        for place in range(count):
            source = column * count + (order[place] if order else place)
            packed[:, column] |= codes[:, source].astype(np.uint32) << np.uint32(place * bits)
    return packed.view(np.int32)


def drawn(bits: int, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [O, I], scales and zero points [O, groups]."""
    generator = np.random.default_rng(bits)
    codes = generator.integers(0, 2**bits, (ROWS, COLUMNS))
    scale = generator.uniform(0.01, 0.1, (ROWS, groups)).astype(np.float16)
    return codes, scale, generator.integers(1, 2**bits, (ROWS, groups))


def values(
    codes: np.ndarray, scale: np.ndarray, zeros: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    """The weight, from the group of each column."""
    result = np.zeros(codes.shape, np.float32)
    for row, column in np.ndindex(*codes.shape):
        group = groups[column]
        difference = np.float32(int(codes[row, column]) - int(zeros[row, group]))
        result[row, column] = difference * np.float32(scale[row, group])
    return result


def act_order() -> np.ndarray:
    """The group of each column, in no order."""
    return np.random.default_rng(0).permutation(np.arange(COLUMNS) // GROUP)


def gptq(bits: int, version: int, *, ordered: bool = True, symmetric: bool = False) -> Made:
    codes, scale, zeros = drawn(bits, COLUMNS // GROUP)
    if symmetric:
        zeros = np.full_like(zeros, 1 << bits - 1)
    groups = act_order() if not ordered else np.arange(COLUMNS) // GROUP
    stored = zeros - (1 if version == 1 else 0)
    tensors = {
        "qweight": words(codes, bits).T.copy(),
        "scales": scale.T.copy(),
        "qzeros": words(stored.T.copy(), bits),
        "g_idx": groups.astype(np.int32),
    }
    return tensors, values(codes, scale, zeros, groups)


def without_order(made: Made) -> Made:
    """Return the same without the groups of columns, which are in order."""
    return {name: made[0][name] for name in made[0] if name != "g_idx"}, made[1]


def awq() -> Made:
    codes, scale, zeros = drawn(4, COLUMNS // GROUP)
    tensors = {
        "qweight": words(codes.T.copy(), 4, AWQ_ORDER),
        "scales": scale.T.copy(),
        "qzeros": words(zeros.T.copy(), 4, AWQ_ORDER),
    }
    return tensors, values(codes, scale, zeros, np.arange(COLUMNS) // GROUP)


def packed(bits: int, symmetric: bool, size: int, *, ordered: bool = True) -> Made:
    codes, scale, zeros = drawn(bits, COLUMNS // size)
    if symmetric:
        zeros = np.full_like(zeros, 1 << bits - 1)
    tensors = {
        "weight_packed": words(codes, bits),
        "weight_scale": scale,
        "weight_shape": np.array([ROWS, COLUMNS], np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words(zeros.T.copy(), bits).T.copy()
    groups = np.arange(COLUMNS) // size
    if not ordered:
        groups = act_order()
        tensors["weight_g_idx"] = groups.astype(np.int32)
    return tensors, values(codes, scale, zeros, groups)


def int8() -> Made:
    codes, scale, zeros = drawn(8, 1)
    tensors = {"weight": (codes - 128).astype(np.int8), "weight_scale": scale}
    return tensors, values(codes - 128, scale, np.zeros_like(zeros), np.zeros(COLUMNS, np.int64))


def mlx(bits: int, size: int) -> Made:
    """Codes one after another in a stream of bits; an element is `code * scale + bias`."""
    codes, scale, _ = drawn(bits, COLUMNS // size)
    bias = (scale * np.float16(-3)).astype(np.float16)
    stream = np.zeros((ROWS, COLUMNS * bits // 32), np.uint32)
    for row, column in np.ndindex(*codes.shape):
        for bit in range(bits):
            place = column * bits + bit
            stream[row, place // 32] |= np.uint32(
                (int(codes[row, column]) >> bit & 1) << place % 32
            )
    result = np.zeros(codes.shape, np.float32)
    for row, column in np.ndindex(*codes.shape):
        group = column // size
        product = np.float32(codes[row, column]) * np.float32(scale[row, group])
        result[row, column] = product + np.float32(bias[row, group])
    return {"weight": stream, "scales": scale, "biases": bias}, result


def fp8(high: int, wide: int, scale: str = "weight_scale", shape: tuple[int, ...] = ()) -> Made:
    """8-bit floats with a scale for each block; those at the right and below may be smaller."""
    draw = np.random.default_rng(high)
    codes = draw.normal(0, 100, (ROWS, COLUMNS)).astype(ml_dtypes.float8_e4m3fn)
    scales = draw.uniform(0.01, 0.1, (-(-ROWS // high), -(-COLUMNS // wide))).astype(np.float32)
    result = np.zeros(codes.shape, np.float32)
    for row, column in np.ndindex(*codes.shape):
        result[row, column] = np.float32(codes[row, column]) * scales[row // high, column // wide]
    return {"weight": codes, scale: scales.reshape(shape or scales.shape)}, result


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def nvfp4(codes_name: str, whole_name: str) -> Made:
    """Two codes a byte, a scale for each 16 of them, and a factor or a divisor of all scales."""
    draw = np.random.default_rng(4)
    codes = draw.integers(0, 16, (ROWS, COLUMNS)).astype(np.uint8)
    scales = draw.uniform(1, 400, (ROWS, COLUMNS // 16)).astype(ml_dtypes.float8_e4m3fn)
    whole = np.array([0.0078125], np.float32)
    divides = whole_name == "weight_global_scale"
    tensors = {
        codes_name: codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": scales,
        whole_name: 1 / whole if divides else whole,
    }  # fmt: skip
    return tensors, E2M1[codes] * np.repeat(scales.astype(np.float32) * whole, 16, axis=1)


def mxfp4() -> Made:
    draw = np.random.default_rng(5)
    codes = draw.integers(0, 16, (ROWS, COLUMNS)).astype(np.uint8)
    exponents = draw.integers(110, 130, (ROWS, COLUMNS // 32)).astype(np.uint8)
    tensors = {"weight_packed": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": exponents}
    scales = np.exp2(exponents.astype(np.float32) - 127)
    return tensors, E2M1[codes] * np.repeat(scales, 32, axis=1)


def floats(strategy: str, **settings: object) -> Settings:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, **settings}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    method = "compressed-tensors"
    return {"quant_method": method, "format": "float-quantized", "config_groups": groups}


def compressed(form: str, bits: int, symmetric: bool, size: int | None) -> Settings:
    strategy = (
        {"strategy": "channel"} if size is None else {"strategy": "group", "group_size": size}
    )
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


def turned(location: str) -> Settings:
    """W4A16 with a rotation at a place."""
    groups = {"R1": {"type": "hadamard", "apply": [{"targets": ["x"], "location": location}]}}
    settings = compressed("pack-quantized", 4, True, GROUP)
    return {**settings, "transform_config": {"config_groups": groups}}


def method(name: str, **settings: object) -> Settings:
    return {"quant_method": name, "bits": 4, "group_size": GROUP, **settings}


CASES: dict[str, tuple[Callable[[], Made], Settings]] = {
    "gptq v1": (lambda: gptq(4, 1), method("gptq")),
    "gptq v2, 8 bits": (lambda: gptq(8, 2), method("gptq", bits=8, checkpoint_format="gptq_v2")),
    "gptq act-order": (lambda: gptq(4, 1, ordered=False), method("gptq", desc_act=True)),
    "gptq v1, symmetric": (lambda: gptq(4, 1, symmetric=True), method("gptq", sym=True)),
    "gptq v2 called v1": (lambda: gptq(4, 2, symmetric=True), method("gptq", sym=True)),
    "gptq, a layer of its own": (
        lambda: gptq(8, 1),
        method("gptq", group_size=128, dynamic={r"+:.*proj": {"bits": 8, "group_size": GROUP}}),
    ),
    "auto-round as gptq": (
        lambda: without_order(gptq(4, 1)),
        method("auto-round", sym=False, packing_format="auto_round:auto_gptq", act_bits=16),
    ),
    "auto-round": (
        lambda: without_order(gptq(8, 2, symmetric=True)),
        method("auto-round", extra_config={"x.y": {"bits": 8}}),
    ),
    "auto-round as awq": (awq, method("auto-round", packing_format="auto_round:auto_awq")),
    "awq": (awq, method("awq", zero_point=True, version="gemm")),
    "W4A16": (lambda: packed(4, True, GROUP), compressed("pack-quantized", 4, True, GROUP)),
    "W4A16 asymmetric": (
        lambda: packed(4, False, GROUP),
        compressed("pack-quantized", 4, False, GROUP),
    ),
    **{
        f"W4A16 act-order, {'a' * (not symmetric)}symmetric": (
            partial(packed, 4, symmetric, GROUP, ordered=False),
            compressed("pack-quantized", 4, symmetric, GROUP),
        )
        for symmetric in (True, False)
    },
    "W8A16 of channels": (
        lambda: packed(8, True, COLUMNS),
        compressed("pack-quantized", 8, True, None),
    ),
    "W8A8": (int8, compressed("int-quantized", 8, True, None)),
    **{
        f"mlx, {bits} bits": (partial(mlx, bits, GROUP), {"bits": bits, "group_size": GROUP})
        for bits in (2, 3, 4, 5, 6, 8)
    },
    "fp8 of blocks": (
        lambda: fp8(5, 24, "weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [5, 24], "fmt": "e4m3"},
    ),
    "fp8 of blocks, compressed": (
        lambda: fp8(8, 32), floats("block", block_structure=[8, 32]),
    ),
    "fp8 of channels": (lambda: fp8(1, COLUMNS), floats("channel")),
    "fp8 of a tensor": (lambda: fp8(ROWS, COLUMNS, shape=(1,)), floats("tensor")),
    "fp8 of modelopt": (
        lambda: fp8(ROWS, COLUMNS, shape=()), {"quant_method": "modelopt", "quant_algo": "FP8"},
    ),
    "nvfp4 of modelopt": (
        partial(nvfp4, "weight", "weight_scale_2"),
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ),
    "mlx, a layer of its own": (
        lambda: mlx(6, GROUP),
        {
            "bits": 4, "group_size": 64, "mode": "affine", "a.norm": False,
            "a.proj": {"bits": 6, "group_size": GROUP},
        },
    ),
}  # fmt: skip
DECODED = {case for case in CASES if case.startswith("fp8") or "act-order" in case}


def saved(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    settings: Settings,
    others: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Save one layer `a.proj`, and others, beside a norm that is not quantized."""
    layer = {f"a.proj.{name}": np.ascontiguousarray(array) for name, array in tensors.items()}
    norm = {"a.norm.weight": np.ones(3, np.float32)}
    save_file({**layer, **norm, **(others or {})}, folder / "model.safetensors")
    config: dict[str, object] = {"model_type": "llama", "quantization_config": settings}
    if "quant_method" not in settings:  # MLX has both
        config["quantization"] = settings
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_values(tmp_path: Path, case: str) -> None:
    """The same decoded, computed by a program of parts, and in parts for conversion."""
    make, settings = CASES[case]
    tensors, wanted = make()
    model = find_model(saved(tmp_path, tensors, settings))
    assert dict(model.config) == {"model_type": "llama"}
    weights = model.weights
    assert isinstance(weights, MadeTensors)
    assert set(weights.names()) == {"a.proj.weight", "a.norm.weight"}
    np.testing.assert_array_equal(weights.load("a.proj.weight"), wanted)
    np.testing.assert_array_equal(
        np.concatenate(list(weights.parts("a.proj.weight"))), wanted.ravel()
    )
    computed = Params(weights, backend=create()).tensor("a.proj.weight", (ROWS, COLUMNS))
    np.testing.assert_array_equal(computed.numpy(), wanted)
    if case.startswith("mlx"):
        fast = Params(weights, backend=gptrs.get_backend("numba")).tensor("a.proj.weight")
        np.testing.assert_array_equal(fast.numpy(), wanted)
    assert (weights.quantized("a.proj.weight") is None) == (case in DECODED)
    _, entry = weights.locate("a.proj.weight")
    stored = [array for name, array in tensors.items() if name != "weight_shape"]
    assert entry.nbytes == sum(array.nbytes for array in stored)


@pytest.mark.parametrize(("form", "size"), [("nvfp4", 16), ("mxfp4", 32)])
def test_values_of_4_bit_floats_of_compressed_tensors(tmp_path: Path, form: str, size: int) -> None:
    tensors, wanted = nvfp4("weight_packed", "weight_global_scale") if size == 16 else mxfp4()
    settings = floats("group", num_bits=4, group_size=size)
    others = {"a.proj.input_global_scale": np.ones(1, np.float32)}
    folder = saved(tmp_path, tensors, {**settings, "format": f"{form}-pack-quantized"}, others)
    weights = find_model(folder).weights
    assert set(weights.names()) == {"a.proj.weight", "a.norm.weight"}
    np.testing.assert_array_equal(weights.load("a.proj.weight"), wanted)
    for name in ("ref", "numba"):
        params = Params(weights, backend=gptrs.get_backend(name))
        np.testing.assert_array_equal(params.tensor("a.proj.weight").numpy(), wanted)


def test_older_folders_of_modelopt_have_a_file_of_settings(tmp_path: Path) -> None:
    """Without it, 8-bit floats would be taken as they are."""
    make, settings = CASES["fp8 of modelopt"]
    tensors, wanted = make()
    folder = saved(tmp_path, tensors, settings)
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(ModelError, match=r"`a.proj.weight`.*no settings say how"):
        find_model(folder).weights.names()
    path = folder / "hf_quant_config.json"
    own = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    path.write_text(json.dumps(own), encoding="utf-8")
    model = find_model(folder)
    assert dict(model.config) == {"model_type": "llama"}
    np.testing.assert_array_equal(model.weights.load("a.proj.weight"), wanted)
    path.write_text('{"quantization": {"quant_algo": "W4A8_AWQ"}}', encoding="utf-8")
    with pytest.raises(ModelError, match=r"`quant_algo`.*must be one of"):
        find_model(folder)


MATRICES = ("gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("kind", "matrices"), [("mixtral", ("w1", "w3", "w2")), ("qwen3_moe", MATRICES), (3, MATRICES)]
)
def test_experts_of_mlx_are_called_as_their_kind_calls_them(
    tmp_path: Path, kind: object, matrices: tuple[str, ...]
) -> None:
    make, settings = CASES["mlx, 4 bits"]
    tensors, wanted = make()
    joined = {name: np.stack([array, array]) for name, array in tensors.items()}
    stored = {f"a.switch_mlp.{m}.{n}": array for m in MATRICES for n, array in joined.items()}
    folder = saved(tmp_path, {}, settings, stored)
    config = json.loads((folder / "config.json").read_text("utf-8")) | {"model_type": kind}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = find_model(folder).weights
    names = {f"a.experts.{number}.{name}.weight" for number in (0, 1) for name in matrices}
    assert set(weights.names()) == {*names, "a.norm.weight"}
    np.testing.assert_array_equal(weights.load(min(names)), wanted)


@pytest.mark.parametrize("case", [case for case in CASES if case != "mlx, a layer of its own"])
def test_experts_are_joined_as_they_are_stored(tmp_path: Path, case: str) -> None:
    """Each has a scale of its own. MLX has them in one tensor; act-order is decoded."""
    make, settings = CASES[case]
    tensors, wanted = make()
    each = [
        {name: array * (array.dtype.type(2**i) if array.dtype.kind == "f" else 1)
         for name, array in tensors.items()} for i in range(3)
    ]  # fmt: skip
    if case.startswith("mlx"):
        joined = {name: np.stack([own[name] for own in each]) for name in tensors}
        stored = {f"a.switch_mlp.up_proj.{name}": array for name, array in joined.items()}
    else:
        stored = {
            f"a.experts.{i}.up_proj.{name}": np.ascontiguousarray(array)
            for i, own in enumerate(each)
            for name, array in own.items()
        }
    weights = find_model(saved(tmp_path, {}, settings, stored)).weights
    names = [f"a.experts.{i}.up_proj.weight" for i in range(3)]
    assert set(weights.names()) == {*names, "a.norm.weight"}
    for i, name in enumerate(names):
        np.testing.assert_array_equal(weights.load(name), wanted * 2**i)
        part = weights.read_slice(name, (slice(2, 5), slice(None)))
        np.testing.assert_array_equal(part, (wanted * 2**i)[2:5])
    sizes = [weights.locate(name)[1].nbytes for name in names]
    assert sum(sizes) == sum(
        array.nbytes for name, array in stored.items() if not name.endswith("weight_shape")
    )
    matrices = ExpertMatrices.of_each(Params(weights, backend=create()), names, COLUMNS, ROWS)
    assert (matrices.weight is None) == (case not in DECODED)
    x = np.random.default_rng(0).normal(size=(4, COLUMNS)).astype(np.float32)
    groups = np.array([2, 0, 1, 2])
    found = matrices(gptrs.tensor(x), gptrs.tensor(groups)).numpy()
    computed = np.einsum("ri,roi->ro", x, np.stack([wanted * 2**i for i in groups]))
    np.testing.assert_allclose(found, computed, rtol=1e-4, atol=1e-4)


def test_codes_are_packed_as_the_library_does(tmp_path: Path) -> None:
    library = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    torch = pytest.importorskip("torch")
    codes = np.random.default_rng(0).integers(-8, 8, (4, 32)).astype(np.int8)
    theirs = library.pack_to_int32(torch.from_numpy(codes), 4).numpy()
    np.testing.assert_array_equal(theirs, words(codes + 8, 4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"quant_method": "hqq"},
            "the `quant_method` `'hqq'`, which gptrs does not.*`bitsandbytes`, and those of MLX",
        ),
        ({"bits": 7, "group_size": 64}, "`bits`.*is supported as 2 or 3 or 4 or 5 or 6 or 8 only"),
        ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, "`mode`.*'affine'"),
        (method("gptq", bits=5), "`bits`.*is supported as 2 or 3 or 4 or 8 only"),
        (method("auto-round", sym=False), "`packing_format`.*must be one of"),
        (method("auto-round", data_type="mx_fp"), "`data_type`.*is supported as 'int' only"),
        (method("auto-round", act_bits=8), "`act_bits`.*is supported as 16 only"),
        (method("awq", version="gemv", zero_point=True), "`version`.*'gemm'"),
        (compressed("nvfp4-pack-quantized", 4, True, 16), "`type`.*is supported as 'float' only"),
        (compressed("marlin-24", 4, True, None), "`format`.*must be one of"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "`quant_algo`.*must be one of"),
        (compressed("float-quantized", 8, True, None), "`type`.*is supported as 'float' only"),
        (floats("group", group_size=32), "`strategy`.*must be one of"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "must be two numbers of at least"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "is supported as 'fp8' only"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "`config_groups`"),
        (turned("input"), "`transform_config`.*turns what is at `input`, which is not supported"),
    ],
    ids=str,
)
def test_refused_settings(tmp_path: Path, settings: Settings, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        find_model(saved(tmp_path, packed(4, True, GROUP)[0], settings))


@pytest.mark.parametrize("bits", [2, 3])
def test_gptq_packs_few_bits_as_a_stream(tmp_path: Path, bits: int) -> None:
    """32 codes of 3 bits fill three words, some of them across a border."""
    generator, rows, groups = np.random.default_rng(bits), 32, COLUMNS // GROUP
    codes = generator.integers(0, 2**bits, (rows, COLUMNS))
    scale = generator.uniform(0.01, 0.1, (rows, groups)).astype(np.float16)
    zeros = generator.integers(1, 2**bits, (rows, groups))

    def stream(numbers: np.ndarray) -> np.ndarray:
        whole = [sum(int(n) << bits * at for at, n in enumerate(row)) for row in numbers]
        count = numbers.shape[1] * bits // 8
        return np.array([list(each.to_bytes(count, "little")) for each in whole], np.uint8).view(
            np.int32
        )

    tensors = {
        "qweight": stream(codes).T.copy(),
        "scales": scale.T.copy(),
        "qzeros": stream(zeros.T - 1),
    }
    weights = find_model(saved(tmp_path, tensors, method("gptq", bits=bits))).weights
    columns = np.arange(COLUMNS) // GROUP
    wanted = (codes - zeros[:, columns]).astype(np.float32) * scale[:, columns].astype(np.float32)
    np.testing.assert_array_equal(weights.load("a.proj.weight"), wanted)
    computed = Params(weights, backend=create()).tensor("a.proj.weight", (rows, COLUMNS))
    np.testing.assert_array_equal(computed.numpy(), wanted)


def test_rotations_of_weights_are_in_the_stored_numbers(tmp_path: Path) -> None:
    tensors, wanted = packed(4, True, GROUP)
    model = find_model(saved(tmp_path, tensors, turned("weight_output")))
    np.testing.assert_array_equal(model.weights.load("a.proj.weight"), wanted)


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    tensors, _ = packed(4, True, GROUP)
    tensors["weight_scale"] = tensors["weight_scale"][:, :1]
    model = find_model(saved(tmp_path, tensors, CASES["W4A16"][1]))
    with pytest.raises(CheckpointError, match="does not fit a scale of `f16"):
        model.weights.type_of("a.proj.weight")


def test_scales_of_floats_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    tensors, _ = fp8(8, 32)
    settings = floats("block", block_structure=[8, 16])
    model = find_model(saved(tmp_path, tensors, settings))
    with pytest.raises(CheckpointError, match=r"does not fit a scale of `f32.*blocks of \[8, 16\]"):
        model.weights.load("a.proj.weight")


def test_groups_of_mlx_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    tensors, _ = mlx(4, GROUP)
    model = find_model(saved(tmp_path, tensors, {"bits": 4, "group_size": 64}))
    with pytest.raises(CheckpointError, match="of 4 bits does not fit scales of `f16"):
        model.weights.type_of("a.proj.weight")
