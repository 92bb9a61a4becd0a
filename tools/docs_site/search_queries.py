"""What people look for in the docs, and the page that must come first for it."""

from __future__ import annotations

from typing import Final

_QUERIES: Final = {
    "generation": "temperature, chat template, beam search, sampling, batch prompts, json "
    "schema output, streaming, stop strings, structured output, chat, system prompt, stop "
    "sequence, max tokens, seed, reproducible, context length, rope scaling, repetition "
    "penalty, greedy, few shot, logprobs, log probabilities, reasoning, "
    "thinking, min p, top_p",
    "serving": "gptrs serve, tool calls, server, function calling, continuous batching, web ui, "
    "chat page, chat ui, rest api, embeddings endpoint, batching",
    "deployment": "docker, api key, systemd, kubernetes, deploy, prometheus, rate limit, "
    "tls, nginx, health check, concurrency, dockerfile, https",
    "migrating": "ollama, llama.cpp, transformers, gpt4all, mlx-lm",
    "clients": "openai, anthropic, openai client, anthropic client, curl, javascript, "
    "langchain, litellm, open webui, claude code, cursor",
    "guessing": "speculative decoding, draft model, eagle",
    "speech": "whisper, transcribe, transcription, speech to text, audio, mp3, "
    "subtitles, timestamps",
    "adapters": "lora, adapter, merge adapter",
    "training": "fine-tune, train, finetune, dataset, qlora, dpo, learning rate, resume "
    "training, sft, gradient accumulation",
    "quantization": "gguf, quantize, awq, int4, gptq, int8 quantization, gguf export, 4 "
    "bit, 8 bit, fp8, nvfp4, bitsandbytes",
    "import": "onnx, onnxruntime, convert onnx",
    "torch": "torch.compile, pytorch, torch compile",
    "devices": "gpu, tpu, cuda, nvidia, apple silicon, rocm",
    "embeddings": "embeddings, sentence similarity, rag, semantic search, vector search, "
    "normalize, cosine similarity",
    "text_heads": "rerank, classify text, reranker, ner, named entities, cross encoder, "
    "spam, sentiment, zero shot, fill mask, pos tagging",
    "seq2seq": "translate, summarize",
    "images": "image classification, vision, image captions, clip, vlm, multimodal, "
    "image embeddings",
    "kv_cache": "kv cache, prefix cache, prompt cache, kv cache size",
    "weight_streaming": "memory, out of memory, models larger than memory, swap, 70b, low memory",
    "profiles": "profile, flamegraph",
    "faq": "slow, troubleshooting, exit code, memory usage, wrong output, error",
    "validation": "hidden states, validate, compare with transformers, perplexity, "
    "accuracy, correctness, eval, mmlu",
    "tracing": "hooks, hook, steering, activations, patch, logit lens, sae, "
    "interpretability, transformerlens, steering vector",
    "jit": "jit, compile",
    "derivatives": "gradient, autodiff",
    "environment": "environment variables, GPTRS_CACHE_DIR, threads, cache location, "
    "settings, cache directory, log level",
    "recipes/add_a_backend": "write a backend, add a backend, custom backend",
    "plugins/extension_points": "plugin, extension points",
    "which_model": "which model, small model, best model, recommended models",
    "install": "install, pip, uv tool, windows, macos, offline, arm, raspberry pi, "
    "uvx, pipx, requirements, upgrade, uninstall, shell completion, wsl, "
    "tab completion",
    "distributed": "ray, model parallel",
    "notebooks": "notebook, jupyter, jupyter notebook, progress bar, ipython, colab",
    "formats": "hugging face hub, safetensors, hf token, delete model, disk space, "
    "download model, pull model, gated model",
    "jax": "stablehlo",
    "libraries": "shared library, without python, c header",
    "kinds": "supported models",
    "recipes/add_a_model_kind": "add a model",
    "capabilities": "what can gptrs do, limits",
    "performance": "benchmark, amx, simd, throughput, latency, tokens per second, speed",
    "compared": "comparison, alternatives, vllm, lm studio",
    "recipes/add_an_op": "add an op",
    "security": "security, pickle",
    "dumps": "dump",
    "tutorial": "getting started, quickstart, python api",
    "words": "glossary",
    "programs": "graph, visualize graph, ir",
}
FIRST: Final = {page: tuple(queries.split(", ")) for page, queries in _QUERIES.items()}
"""Queries by page: the search of the site and `gptrs docs` must both answer them."""
