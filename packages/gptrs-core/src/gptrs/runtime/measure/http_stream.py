"""A small client of `/v1/completions`, for measurements: one connection, one stream at a time."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Final
from urllib.parse import urlsplit

from gptrs.errors import ExecutionError, UsageError
from gptrs.quoting import clipped
from gptrs.runtime.measure.serving_load import LoadRequest, TextTimes

_DATA: Final = b"data: "
_DONE: Final = b"data: [DONE]"


class StreamClient:
    """Asks the server at `url`, of the form `http://HOST:PORT`, over a connection that it keeps."""

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"`{url}` is no address of the form http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or 80
        self._model, self._key = model, key
        self._pipe: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: LoadRequest) -> TextTimes:
        """Return the times of the answer; ExecutionError if the server refuses or goes away."""
        data = self._request(request)
        sent = time.perf_counter()
        try:
            if self._pipe is None:
                self._pipe = await asyncio.open_connection(self._host, self._port)
            reader, writer = self._pipe
            writer.write(data)
            await self._require_success(reader)
            return await _read(reader, sent)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ExecutionError(
                f"the server at {self._host} port {self._port} does not answer: {error}"
            ) from error

    def close(self) -> None:
        """Close the connection."""
        if self._pipe is not None:
            self._pipe[1].close()
            self._pipe = None

    def _request(self, request: LoadRequest) -> bytes:
        fields: dict[str, object] = {
            "prompt": list(request.tokens),
            "max_tokens": request.new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._model is not None:
            fields["model"] = self._model
        body = json.dumps(fields).encode()
        lines = [
            "POST /v1/completions HTTP/1.1",
            f"Host: {self._host}:{self._port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if self._key is not None:
            lines.append(f"Authorization: Bearer {self._key}")
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def _require_success(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1]
        if status != b"200":
            told = (await reader.read(2000)).decode(errors="replace")
            self.close()
            raise ExecutionError(f"the server answers {status.decode()}: {clipped(told, 300)}")


async def _read(reader: asyncio.StreamReader, sent: float) -> TextTimes:
    """Read the events of an answer to their end, and note when those with text came."""
    came: list[float] = []
    tokens = 0
    last = b""
    while True:
        line = (await reader.readline()).rstrip()
        if line.startswith(_DONE):
            break
        if not line and reader.at_eof():
            raise ExecutionError("the server went away before the answer had ended")
        if line.startswith(_DATA):
            if b'"choices":[{' in line:
                came.append(time.perf_counter())
            last = line
    await reader.readuntil(b"0\r\n\r\n")
    told = json.loads(last.removeprefix(_DATA))
    if "error" in told:
        raise ExecutionError(f"the server tells of an error: {clipped(str(told['error']), 300)}")
    tokens = int(told["usage"]["completion_tokens"])
    return TextTimes(sent, came, tokens)
