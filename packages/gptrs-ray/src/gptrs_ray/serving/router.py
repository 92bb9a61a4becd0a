"""A request router of Ray Serve: to the replica that has read most of the prompt.

Ray Serve imports it by its name, in the processes that route; Ray has such routers since 2.48.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from gptrs_ray.serving.affinity import Readers, is_overloaded, mark_of
from gptrs_ray.serving.relay import Asked


class PrefixRouter(RequestRouter):
    """Chooses the reader of the longest beginning of a prompt, unless it is overloaded.

    Others go to the less busy of two replicas at random. A request that names a stored response
    goes to the replica that stores it.
    """

    def initialize_state(self, **kwargs: object) -> None:
        """Begin without knowledge; called by Ray Serve."""
        self._readers: Readers[ReplicaID] = Readers()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return groups of replicas to try, one after another."""
        # The framework takes the less busy one of a group, and the next group where none has room.
        pair = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        by_id = {each.replica_id: each for each in candidate_replicas}
        asked = _asked(pending_request)
        chosen = None if asked is None else self._reader(asked, list(by_id))
        return [pair] if chosen is None else [[by_id[chosen]], pair]

    def _reader(self, asked: Asked, replicas: Sequence[ReplicaID]) -> ReplicaID | None:
        if asked.response:
            for each in replicas:
                if asked.response.startswith(f"resp_{mark_of(each.unique_id)}"):
                    return each
        reader = self._readers.reader(asked.beginnings, replicas)
        found = ((each, self.replica_queue_len_cache.get(each)) for each in replicas)
        loads = {each: length for each, length in found if length is not None}
        return None if reader is None or is_overloaded(reader, loads) else reader

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Remember who reads a prompt; called by Ray Serve."""
        asked = _asked(pending_request)
        if asked is not None:
            self._readers.note(asked.beginnings, replica_id)


def _asked(request: PendingRequest | None) -> Asked | None:
    found = request.args[0] if request is not None and request.args else None
    return found if isinstance(found, Asked) else None
