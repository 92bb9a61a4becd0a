"""Names for backends: the base classes of an author, and what backends share.

- The contract: `Backend`, `Executable`, `Buffer`, `InputRole`; the table of kernels: `OpTable`,
  `require_supported`; `dying_values`, which says when memory is free; `Composite`, which
  `claim` gets, and `Claimed`, what it may return: a `CustomCall`, another op, a region, `Declined`
  of `gptrs.api.passes`, or None. `functional_arguments` gives a kernel the arguments of the
  functional; `KernelSequence` runs the kernels of a table.
- What comes with an offer of the contract: `BoundInputs`, `SubmittedRun`, `KernelRun`, `Precision`;
  `CacheReport`, `CachePart`, `Entries`, and `private_folder`, a directory of the cache that nobody
  else can write to; `WeightIdentity`, `WeightFile`.
- Settings and devices: `BackendSettings`, `ProcessGroup`, `DeviceInfo`; `Mesh`, `Axis`, `Axes`,
  `Sharding`, `sharding_of`, `ShardSource`, `ArraySource`.
- Symbolic sizes: `SizeGuards`, `deciding`, `least`, `greatest`, `select`.
- Resources granted to the process: `requested_threads`, `granted_cpus`, `affinity_cpus`,
  `cpu_quota`, `memory_limit`.
- `run_conformance` checks a backend, `op_support` lists the ops that it supports and
  `composite_support` who computes functionals, all from the package `gptrs-conformance`, whose
  pytest class is `gptrs_conformance.suite.ConformanceSuite`.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
