"""All backends that are wrong in one way each."""

from __future__ import annotations

from conformance import (
    contract_mutants,
    elementwise_mutants,
    placement_mutants,
    reduction_mutants,
)

MUTANTS = [
    mutant
    for module in (elementwise_mutants, reduction_mutants, placement_mutants, contract_mutants)
    for mutant in module.MUTATIONS.mutants
]
