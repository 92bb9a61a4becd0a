"""Language models in ONNX files: their caches recognized, or carried from step to step."""
