"""The names that plugins may import: everything else in gptrs may change without notice.

A plugin states the `API_VERSION` that it was written for, or a range; within a version these names
keep their meaning, see docs/plugins/compatibility.md. The descriptions are here at once, all other
names are imported on first use, so that the module an entry point names stays light.

- Descriptions: `BackendPlugin`, `ModelPlugin`, `FunctionalPlugin`, `CommandPlugin`,
  `ImporterPlugin`, `ExporterPlugin`, `DemoModelPlugin`, `TraceSinkPlugin`, `hookimpl`,
  `API_VERSION`, `is_compatible`.
- For backends: `Backend`, `Executable`, `Buffer`, `InputRole`, `OpTable`, `require_supported`,
  `dying_values`; what the process is granted: `requested_threads`, `granted_cpus`,
  `affinity_cpus`, `cpu_quota`, `memory_limit`; and the program they are given: `Program`,
  `Function`, `Region`, `Instruction`, `Value`, `Op`, `Signature`, `TensorType`, `DType`, `Literal`,
  `Scalar`, `Dictionary`, `FunctionName`; the modules `ops` (one module a family), `dtypes`
  and `random_constants` (the numbers that define the random ops). `run_conformance` checks a
  backend and `op_support` lists what it takes, both by the package `gptrs-conformance`, whose
  pytest class is `gptrs_conformance.suite.ConformanceSuite`. For what a backend may
  offer besides: `BackendSettings`, `ProcessGroup` and `DeviceInfo`; `Mesh`, `Axis`, `Axes`,
  `Sharding`, `sharding_of`, `ShardSource` and `ArraySource`; `Precision`; `BoundInputs`,
  `SubmittedRun` and `KernelRun`; `CacheReport`, `CachePart` and `Entries`; `WeightIdentity` and
  `WeightFile`; `SizeGuards`, `deciding`, `least`, `greatest` and `select`; `Pass`, `RewritePass`,
  `FusionPass`, `find_calls`, `FoundCall` and `pattern`; for rewrites `rewrite`, `Rewrite`,
  `Declined`, `Emitter`, `Match`, `calls`, `Operand`, `Operands` and `Attribute`.
  `private_folder` is a directory of the cache that nobody else can write to.
- For models: `Tensor`, `tensor`, `jit`, `register_pytree`, `Module`, `Params`, `ConfigFields`,
  and the modules `nn` and `functionals`. `nn` has layers, activations, rope settings, the paged
  key/value cache and the base classes: `CausalLMModule`, `ImageClassifierModule`, `Seq2SeqModule`,
  `TextEncoderModule` with `TextClassifierModule`, `TokenClassifierModule` and `MaskedLMModule`,
  `CacheSpec`, `LayerCache`, `PageBuffers`, `RaggedStep`. The protocols of capabilities: `CausalLM`,
  `ImageClassifier`, `ImageEmbedder`, `ImageLM`, `ImageTextScorer`, `TextEmbedder`,
  `TextClassifier`, `TokenClassifier`, `MaskedLM`, `Seq2SeqLM`, `Transcriber`,
  `SoundTranscriber`, `CTCModel`, `HiddenStates`. `GgufArchitecture` says what llama.cpp calls the
  tensors and settings of a kind, `TimmFamily` what timm does.
- For trace sinks: `ExecutionTraceSink` and its events `CompileStart`, `PassEvent`, `CompileEnd`,
  `RunStart`, `RunEnd`, `KernelEvent`, `ImplementationChoice`.
- For importers: `ImportedModel`, its base classes `ImportedGraph` and `ConvertedGraph`,
  `ModelInput` and `named_arguments`; `share_array` and `take_array`, which exchange memory with
  other libraries without a copy, and `with_precision`.
  For exporters: `OutgoingModel` and `OutgoingTensor`, `SymbolicDim`, `atomic_file` and
  `write_data`.
- For functionals: `functional`, `implement`, and the module `primitives`.
- For programs and tests: `Builder`, `parse_program`, `print_program`, `parse_json`, `print_json`,
  `verify`, `symbols`, `bind`, `specialize`, `run_program`.
- Errors: `GptrsError` and its subclasses, each saying when it is raised.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
