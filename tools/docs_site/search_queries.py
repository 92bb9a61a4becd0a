"""What people look for in the docs, and the page that must come first for it."""

from __future__ import annotations

from typing import Final

_QUERIES: Final = {
    "generation": "temperature, chat template, beam search, sampling, batch prompts, "
    "json schema output, streaming, stop strings, structured output, chat, "
    "system prompt, stop sequence, max tokens, seed, reproducible, context length, "
    "rope scaling",
    "serving": "gptrs serve, tool calls, server, function calling, continuous batching, web ui",
    "deployment": "docker, api key, systemd, kubernetes, deploy, prometheus, rate limit",
    "migrating": "ollama, llama.cpp, transformers",
    "clients": "openai, anthropic, openai client, anthropic client, curl",
    "guessing": "speculative decoding, draft model, eagle",
    "speech": "whisper, transcribe, transcription, speech to text",
    "adapters": "lora, adapter, merge adapter",
    "training": "fine-tune, train, finetune, dataset, qlora, dpo, learning rate, resume training",
    "quantization": "gguf, quantize, awq, int4, gptq, int8 quantization, gguf export",
    "import": "onnx, onnxruntime, convert onnx",
    "torch": "torch.compile, pytorch, torch compile",
    "devices": "gpu, tpu, cuda",
    "embeddings": "embeddings, sentence similarity, rag, semantic search",
    "text_heads": "rerank, classify text, reranker, ner, named entities, cross encoder",
    "seq2seq": "translate, summarize",
    "images": "image classification, vision, image captions, clip",
    "kv_cache": "kv cache, prefix cache, prompt cache, kv cache size",
    "weight_streaming": "memory, out of memory, models larger than memory",
    "profiles": "profile, flamegraph",
    "faq": "slow, troubleshooting, exit code, memory usage",
    "validation": "hidden states, validate, compare with transformers, perplexity",
    "tracing": "hooks, hook, steering, activations, patch",
    "jit": "jit, compile",
    "derivatives": "gradient, autodiff",
    "environment": "environment variables, GPTRS_CACHE_DIR, threads, cache location",
    "recipes/add_a_backend": "write a backend, add a backend, custom backend",
    "plugins/extension_points": "plugin, extension points",
    "which_model": "which model",
    "install": "install, pip, uv tool, windows, macos, offline, arm, raspberry pi",
    "distributed": "ray, model parallel",
    "notebooks": "notebook, jupyter, jupyter notebook",
    "formats": "hugging face hub, safetensors, hf token, delete model, disk space",
    "jax": "stablehlo",
    "libraries": "shared library, without python, c header",
    "kinds": "supported models",
    "recipes/add_a_model_kind": "add a model",
    "capabilities": "what can gptrs do, limits",
    "performance": "benchmark, amx, simd",
    "compared": "comparison, alternatives, vllm, lm studio",
    "recipes/add_an_op": "add an op",
    "security": "security, pickle",
    "dumps": "dump",
    "tutorial": "getting started, quickstart, python api",
    "words": "glossary",
}
FIRST: Final = {page: tuple(queries.split(", ")) for page, queries in _QUERIES.items()}
"""Queries by page: the search of the site and `gptrs docs` must both answer them."""
