"""All kinds of results by the name in their `schema`."""

from __future__ import annotations

from typing import Final

from gptrs_cli.json_types import installation, running, texts

KINDS: Final[dict[str, type]] = {
    "error": installation.Error,
    "generate": running.Generate,
    "generate.event": running.GenerateEvent,
    "generate.line": running.GenerateLine,
    "forward": running.Forward,
    "trace": running.Trace,
    "trace.modules": running.TraceModules,
    "embed": running.Embed,
    "classify": texts.Classify,
    "rank": texts.Rank,
    "match": texts.Match,
    "tag": texts.Tag,
    "fill": texts.Fill,
    "transcribe": texts.Transcribe,
    "tokenize": running.Tokenize,
    "perplexity": running.Perplexity,
    "run": running.Run,
    "validate": running.Validate,
    "validate.against": running.ValidateAgainst,
    "bench": running.Bench,
    "bench.serve": running.BenchServe,
    "models.list": installation.ModelsList,
    "models.pull": installation.ModelsPull,
    "models.path": installation.ModelsPath,
    "models.remove": installation.ModelsRemove,
    "list.backends": installation.ListBackends,
    "list.models": installation.ListModels,
    "list.plugins": installation.ListPlugins,
    "list.functionals": installation.ListFunctionals,
    "list.ops": installation.ListOps,
    "list.patterns": installation.ListPatterns,
    "inspect.checkpoint": installation.InspectCheckpoint,
    "inspect.program": installation.InspectProgram,
    "inspect.pass": installation.InspectPass,
    "convert": installation.Convert,
    "quantize": installation.Quantize,
    "cache.info": installation.CacheInfo,
    "cache.warm": installation.CacheWarm,
    "cache.clear": installation.CacheClear,
    "doctor": installation.Doctor,
    "plugins.check": installation.PluginsCheck,
    "conformance": installation.Conformance,
    "conformance.report": installation.ConformanceReport,
}
