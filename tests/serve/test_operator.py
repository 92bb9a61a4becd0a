"""What an operator sets and sees: hosts, keys, logs, metrics, sockets, a server that loads."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gptrs.errors import BackendError, UsageError
from gptrs_cli.main import main
from gptrs_runtime.generation.scheduled_text import Client, Turns
from gptrs_runtime.serving.engine import Engine
from gptrs_serve.app import Access, new_app
from gptrs_serve.command import _hosts
from gptrs_serve.keys import Key, KeyRing, read_keys
from gptrs_serve.listening import (
    Opening,
    Seldom,
    Wire,
    _config,
    new_listener,
    new_unix_listener,
    run_opening,
)
from gptrs_serve.request_log import json_log
from gptrs_serve.served import Served
from serve.clients import http

httpx = pytest.importorskip("httpx")
testclient = pytest.importorskip("starlette.testclient", reason="httpx is not installed")
ASKED = {"prompt": "the cat", "max_tokens": 2}


@pytest.fixture(scope="module")
def served(model):
    with Engine({"tiny": model}) as engine:
        yield Served({"tiny": model}, engine, 100)


def client(served, **access):
    root = access.pop("root_path", "")
    return testclient.TestClient(new_app(served, Access(**access)), root_path=root)


def test_each_answer_has_the_id_of_its_request(served):
    asked = client(served, keys=("one",))
    for path, given, status in (
        ("/health", "a-1", 200),
        ("/v1/models", "b", 401),
        ("/no", "c", 401),
    ):
        answer = asked.get(path, headers={"X-Request-Id": given})
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, given)
    made = [asked.get("/health").headers["x-request-id"] for _ in range(2)]
    assert len({*made}) == 2
    assert len(asked.get("/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"]) == 16


def test_refused_requests_are_counted_and_made_up_paths_share_one_count(served):
    asked = client(served, keys=("one",))
    key = {"Authorization": "Bearer one"}
    asked.get("/v1/models")
    asked.get("/v1/models/x", headers=key)
    for number in range(3):
        asked.get(f"/made/up/{number}", headers=key)
    asked.get("/v1/completions", headers=key)
    text = asked.get("/metrics", headers=key).text
    for path, status, count in (
        ("/v1/models", 401, 1),
        ("/v1/models/{name:path}", 404, 1),
        ("other", 404, 3),
        ("/v1/completions", 405, 1),
    ):
        assert f'gptrs_requests_total{{path="{path}",status="{status}"}} {count}.0' in text


def test_metrics_are_those_of_each_model_also_under_the_names_of_vllm(served):
    asked = client(served)
    made = asked.post("/v1/completions", json=ASKED).json()["usage"]
    text = asked.get("/metrics").text
    for line in (
        f'gptrs_prompt_tokens_total{{model="tiny"}} {made["prompt_tokens"]}.0',
        'vllm:generation_tokens_total{model_name="tiny"} 2.0',
        'vllm:request_success_total{finished_reason="length",model_name="tiny"} 1.0',
        'vllm:e2e_request_latency_seconds_count{model_name="tiny"} 1.0',
        'vllm:request_queue_time_seconds_count{model_name="tiny"} 1.0',
        'gptrs_request_generated_tokens_bucket{le="8.0",model="tiny"} 1.0',
        'vllm:num_requests_running{model_name="tiny"} 0.0',
        "gptrs_engine_up 1.0",
    ):
        assert line in text.splitlines(), line


def test_requests_are_logged_in_lines(served, caplog):
    asked = client(served, keys=KeyRing([Key("one", "alice")]), logs=True)
    headers = {"Authorization": "Bearer one", "X-Request-Id": "r1"}
    with caplog.at_level(logging.INFO, "gptrs"):
        asked.post("/v1/completions", json=ASKED, headers=headers)
        asked.get("/a%0ab c", headers={"X-Request-Id": "r2"})
    lines = [record.getMessage() for record in caplog.records if record.name == "gptrs.access"]
    first, second = lines
    assert " testclient POST /v1/completions 200 " in first
    assert first.endswith("key=alice model=tiny prompt_tokens=3 generated_tokens=2 id=r1")
    assert '"/a\\nb c" 401 ' in second
    assert "one" not in first.replace("alice", "").split()


def test_requests_are_logged_as_json_with_the_cause_of_an_error(served, capsys, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("outer") from KeyError("inner")

    before = list(logging.getLogger("uvicorn").handlers)
    with json_log():
        asked = client(served, logs=True)
        asked.get("/health")
        monkeypatch.setattr(served, "submit", fail)
        answer = asked.post("/v1/completions", json=ASKED, headers={"X-Request-Id": "r9"})
    assert "for request r9" in answer.json()["error"]["message"]
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    health, error, request = events
    assert (health["message"], health["path"], health["status"]) == ("request", "/health", 200)
    assert (error["level"], error["error"], error["causes"]) == (
        "error", "RuntimeError", ["KeyError: 'inner'"],
    )  # fmt: skip
    assert error["request_id"] == request["request_id"] == "r9"
    assert "in fail" in error["traceback"]
    assert logging.getLogger("uvicorn").handlers == before


@pytest.mark.parametrize(
    ("host", "allowed", "good", "bad"),
    [
        ("127.0.0.1", [], ["localhost:80", "127.0.0.1"], ["evil.example", ""]),
        ("127.0.0.2", [], ["127.0.0.2:80"], ["evil.example"]),
        ("127.0.0.1", ["api.example.com"], ["API.example.com:443", "localhost"], ["evil.example"]),
        ("0.0.0.0", ["api.example.com"], ["api.example.com"], ["evil.example"]),
        ("0.0.0.0", [], ["any.example"], []),
        ("127.0.0.1", ["*"], ["any.example"], []),
    ],
)
def test_hosts(served, host, allowed, good, bad):
    asked = client(served, hosts=_hosts(host, allowed, is_unix=False))
    for name, status in [*((each, 200) for each in good), *((each, 403) for each in bad)]:
        assert asked.get("/health", headers={"Host": name}).status_code == status, name


def test_two_hosts_are_a_bad_request(served):
    answer = client(served).get(
        "/health", headers=[("Host", "localhost"), ("Host", "evil.example")]
    )
    assert answer.status_code == 400


def test_pages_of_allowed_origins_may_send_headers_of_their_own(served):
    asked = client(served, origins=("https://a.example",))
    names = "authorization,content-type,x-stainless-lang,x-stainless-os"
    headers = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": names}
    good = asked.options("/v1/models", headers={**headers, "Origin": "https://a.example"})
    assert (good.status_code, good.headers["access-control-allow-headers"]) == (200, names)
    bad = asked.options("/v1/models", headers={**headers, "Origin": "https://b.example"})
    assert "access-control-allow-origin" not in bad.headers


def test_a_proxy_may_have_the_server_below_a_path(served):
    asked = client(served, keys=("one",), root_path="/llm")
    for path, status in (("/llm/health", 200), ("/llm/v1/models", 401), ("/llm/", 200),
                         ("/llm/health/", 200), ("/llm/v1/models/", 401)):  # fmt: skip
        assert asked.get(path).status_code == status
    page = asked.get("/llm/").text
    assert 'src="page.js"' in page
    assert 'href="page.css"' in page


# Keys.


def test_a_line_of_the_key_file_may_have_a_name_and_limits(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("# of us\nplain\n\nother name=b weight=2.5 most-requests=3\n", "utf-8")
    file.chmod(0o600)
    monkeypatch.setenv("GPTRS_SERVE_API_KEY", "env")
    assert read_keys(file) == [Key("env"), Key("plain"), Key("other", "b", 2.5, 3)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("secret x", "line 2 of `{}`: `x` is not understood"),
        ("secret color=red", "there is no `color`"),
        ("secret weight=", "`weight=` is not understood"),
        ("secret weight=0", "a weight is 0.001 to 1000"),
        ("secret weight=nan", "a weight is 0.001 to 1000"),
        ("secret most-requests=0", "a limit at least 1"),
        ("secret most-requests=x", "invalid literal"),
        ("first", "has a key twice"),
    ],
)
def test_words_of_the_key_file_that_are_not_understood(tmp_path, line, message):
    file = tmp_path / "keys"
    file.write_text(f"first\n{line}\n", "utf-8")
    with pytest.raises(UsageError) as caught:
        read_keys(file)
    assert message.format(file) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_keys_are_read_again_and_stay_if_they_cannot_be(tmp_path, capsys):
    file = tmp_path / "keys"
    file.write_text("old\n", "utf-8")
    file.chmod(0o600)
    ring = KeyRing(read_keys(file), lambda: read_keys(file))
    file.write_text("new\nmore\n", "utf-8")
    ring.reload()
    assert (ring.find("old"), ring.find("new")) == (None, Key("new"))
    assert capsys.readouterr().err == "2 API keys\n"
    file.write_text("\n", "utf-8")
    ring.reload()
    assert ring.find("new") == Key("new")
    assert "the keys stay as they are" in capsys.readouterr().err


def test_a_key_has_as_many_open_requests_as_it_may(served):
    ring = KeyRing([Key("few", most_requests=1), Key("many")])
    few = ring.find("few")
    asked = client(served, keys=ring)
    assert ring.begin(few)
    answers = {
        key: asked.post("/v1/completions", json=ASKED, headers={"Authorization": f"Bearer {key}"})
        for key in ("few", "many")
    }
    assert answers["few"].status_code == 429
    assert "this key has 1 open requests" in answers["few"].text
    assert answers["many"].status_code == 200
    ring.end(few)
    headers = {"Authorization": "Bearer few"}
    for _ in range(2):  # one that has ended counts no more
        assert asked.post("/v1/completions", json=ASKED, headers=headers).status_code == 200


def test_a_client_of_twice_the_weight_takes_twice_the_turns():
    turns = Turns()
    order = sorted(
        (turns.next(Client(name, weight), 1), name)
        for name, weight in (("a", 1.0), ("b", 2.0))
        for _ in range(6)
    )
    assert [name for _, name in order[:9]].count("b") == 6


# Sockets, and the time before models are there.


def _serve(arguments, **more):
    command = [sys.executable, "-m", "gptrs_cli", "serve", *arguments, "--backend", "ref"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **more)


def test_a_socket_in_the_file_system(tmp_path):
    path = tmp_path / "s"
    left = new_unix_listener(path)  # of a server that was killed
    left.close()
    assert path.is_socket()
    with _serve(["--uds", str(path), "--access-log"]) as server:
        assert f"at unix:{path}" in server.stderr.readline()
        assert path.stat().st_mode & 0o777 == 0o660
        with pytest.raises(UsageError, match="another server listens"):
            new_unix_listener(path)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as asked:
            assert asked.get("http://anything/health").json() == {"status": "ok"}
        server.send_signal(signal.SIGTERM)
        assert "GET /health 200" in server.stderr.read()
    assert not path.exists()


def test_tls(tmp_path, served):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    files = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    with _serve([*files, "--port", "0"]) as server:
        line = server.stderr.readline()
        assert "at https://127.0.0.1:" in line
        address = line.split()[-1]
        # A certificate that it has made itself: whether it is trusted is the matter of httpx.
        assert httpx.get(f"{address}/health", verify=False).status_code == 200
        server.send_signal(signal.SIGTERM)
    with pytest.raises(UsageError, match="--ssl-certfile and --ssl-keyfile cannot be used"):
        _config(new_app(served, Access()), Wire(key, key), 1)


def test_keys_are_read_again_on_a_signal(tmp_path):
    file = tmp_path / "keys"
    file.write_text("old\n", "utf-8")
    file.chmod(0o600)
    with _serve(["--api-key-file", str(file), "--port", "0"]) as server:
        address = server.stderr.readline().split()[-1]
        assert server.stderr.readline().startswith("no model was named: the bundled `demo` is")
        headers = {"Authorization": "Bearer new"}
        assert http.get(f"{address}/v1/models", headers=headers).status_code == 401
        file.write_text("new\n", "utf-8")
        server.send_signal(signal.SIGHUP)
        assert server.stderr.readline() == "1 API keys\n"
        assert http.get(f"{address}/v1/models", headers=headers).status_code == 200
        server.send_signal(signal.SIGTERM)


def _opened(opening):
    """Run an application that is being made in a thread; its address, and how to end it."""
    listener = new_listener("127.0.0.1", 0)
    ended = []

    def run():
        with pytest.raises(BackendError, match="the test is over"):
            run_opening(opening, listener, 5, Wire())

    app = threading.Thread(target=run, daemon=True)
    opening.lost = lambda before=opening.lost: ended[0] if ended else before()
    app.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", app, ended


def test_while_models_load_the_server_lives_and_is_not_ready(model):
    go = threading.Event()

    def opened():
        go.wait(120)
        served = Served({"tiny": model}, Engine({"tiny": model}), 8)
        return new_app(served, Access()), served

    address, thread, ended = _opened(Opening(opened))
    health, ready = http.get(f"{address}/health"), http.get(f"{address}/ready")
    assert (health.status_code, health.json()) == (200, {"status": "loading"})
    assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
    with ThreadPoolExecutor() as threads:  # what comes meanwhile waits, and is answered
        waits = threads.submit(http.post, f"{address}/v1/completions", json=ASKED)
        with pytest.raises(TimeoutError):
            waits.result(0.2)
        go.set()
        assert waits.result(120).status_code == 200
    assert http.get(f"{address}/ready").json() == {"status": "ready"}
    ended.append("the test is over")
    thread.join(120)
    assert not thread.is_alive()


def test_models_that_cannot_be_loaded_end_the_server():
    def opened():
        raise UsageError("no such model")

    with (
        new_listener("127.0.0.1", 0) as listener,
        pytest.raises(UsageError, match="no such model"),
    ):
        run_opening(Opening(opened), listener, 5, Wire())


# Options in a file.


def test_options_in_a_file(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "gptrs_serve.command.run_opening",
        lambda opening, *asked: (opening._make(), seen.update(wire=asked[2])),
    )
    monkeypatch.setattr(
        "gptrs_serve.command.new_app", lambda served, access: seen.update(s=served, access=access)
    )
    file = tmp_path / "serve.toml"
    file.write_text(
        'models = ["one=demo", "two=demo"]\nport = 0\nbackend = "ref"\nmost-output = 7\n'
        'allow-host = ["a.example"]\naccess_log = true\nroot-path = "/x"\n',
        "utf-8",
    )
    assert main(["serve", "--config", str(file), "--root-path", "/y"]) == 0
    assert list(seen["s"].models) == ["one", "two"]
    assert seen["access"].logs
    assert "a.example" in seen["access"].hosts
    assert seen["wire"].root_path == "/y"
    assert seen["s"].account(seen["s"].models["one"], 3, None, 1, None).tokens_of_answer() == 7
    seen["s"].close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown option `prot`; did you mean `port`?"),
        ("models = 'a'", "`models` in `{}` must be a list"),
        ("port = [1]", "`port` in `{}` must be one value"),
        ("port = 'x'", "port"),
        ("port =", "cannot be read"),
        ("config = 'x'", "unknown option `config`"),
    ],
)
def test_files_of_options_that_are_refused(tmp_path, capsys, text, message):
    file = tmp_path / "serve.toml"
    file.write_text(text, "utf-8")
    assert main(["serve", "--config", str(file)]) == 2
    assert message.format(file) in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="limits of paths are those of POSIX")
def test_a_socket_whose_path_is_too_long(tmp_path):
    with pytest.raises(UsageError, match="of at most 100 characters"):
        new_unix_listener(Path(tmp_path / ("x" * 120)))


def test_malformed_requests_are_logged_once_a_minute():
    logger = logging.getLogger("uvicorn.error")
    with Seldom() as seldom:
        assert seldom in logger.filters
        said = ("Invalid HTTP request received.", "another", "another") * 2
        written = [text for text in said if seldom.filter(logging.makeLogRecord({"msg": text}))]
    assert written == ["Invalid HTTP request received.", *4 * ["another"]]
    assert seldom not in logger.filters
