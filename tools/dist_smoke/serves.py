"""`gptrs serve` answers a completion on a free port, and ends by SIGTERM without a complaint."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request

SECONDS = 120

with subprocess.Popen(
    ["gptrs", "serve", "--port", "0"], stderr=subprocess.PIPE, text=True
) as server:
    try:
        assert server.stderr is not None
        address = server.stderr.readline().split()[-1]
        assert address.startswith("http://127.0.0.1:"), address
        asked = {"model": "demo", "prompt": "import os\n", "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(
            f"{address}/v1/completions",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            found = json.load(answer)
        assert found["usage"]["completion_tokens"] == 4, found
        assert found["choices"][0]["finish_reason"] == "length", found
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=SECONDS)
    finally:
        server.kill()
assert server.returncode in (0, -signal.SIGTERM), (server.returncode, said)
assert "Traceback" not in said, said
