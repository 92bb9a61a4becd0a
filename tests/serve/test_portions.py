"""Streams whose bytes come in other portions than they were sent in, as proxies have them come."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator

import pytest

openai = pytest.importorskip("openai", reason="the client of OpenAI is not installed")
ASKED = {"model": "tiny", "max_tokens": 12, "temperature": 0.9, "seed": 3, "stream": True}


def _relay(client: socket.socket, port: int, dice: random.Random) -> None:
    """Pass one request on, and its answer back in portions of their own until it ends."""
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        asked = client.recv(65536)
        while not asked.endswith(b"}"):  # the end of a body
            asked += client.recv(65536)
        server.sendall(asked.replace(b"keep-alive", b"close"))
        answer = b"".join(iter(lambda: server.recv(65536), b""))
        with contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while answer:
                size = dice.choice((1, 2, 3, 50, 700))
                client.sendall(answer[:size])
                answer = answer[size:]


@pytest.fixture(scope="module")
def relayed(address) -> Iterator[str]:
    """The address of a relay to the server that cuts answers anew."""
    port, dice = int(address.rsplit(":", 1)[1]), random.Random(5)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work() -> None:
            with contextlib.suppress(OSError):
                while True:
                    _relay(listener.accept()[0], port, dice)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_the_client_of_openai_reads_them(address, relayed):
    told = []
    for url in (f"{address}/v1", relayed):
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            asked = client.chat.completions.create(
                messages=[{"role": "user", "content": "für 🐈"}], n=3, **ASKED
            )
            texts = ["", "", ""]
            for chunk in asked:
                texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
            told.append(texts)
    assert told[0] == told[1]
    assert all(told[0])
