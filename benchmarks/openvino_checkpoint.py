"""Exports checkpoints to OpenVINO with weights of 8 and 4 bits, beside the GGUF files of a run.

`optimum-intel` needs another transformers than the rest of the benchmarks: run this in an
environment of its own, `pip install optimum-intel[openvino] nncf`, on the folder of
`run.py --only quantized --folder FOLDER`; the next run has OpenVINO beside llama.cpp.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

_KINDS = {
    "Q8_0": OVWeightQuantizationConfig(bits=8, sym=False),
    "Q4_0": OVWeightQuantizationConfig(bits=4, sym=True, group_size=32, ratio=1.0),
}
"""What OpenVINO makes of a model: 8 bits for each channel; 4 in groups of 32, embeddings in 8."""


def main() -> None:
    """Export each checkpoint of the folder that has GGUF files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for file in sorted(parser.parse_args().folder.glob("*.gguf")):
        name, _, kind = file.stem.rpartition("-")
        checkpoint, target = file.with_name(name), file.with_suffix(".openvino")
        if kind in _KINDS and checkpoint.is_dir() and not target.exists():
            print(f"exporting {target.name}")
            model = OVModelForCausalLM.from_pretrained(
                checkpoint, export=True, compile=False, quantization_config=_KINDS[kind]
            )
            model.save_pretrained(target)


if __name__ == "__main__":
    main()
