"""Renders chat templates in a separate process, because templates are untrusted. Jinja's sandbox
keeps a template from reaching Python, but not from computing for hours or filling the memory with
one expression, so the operating system enforces limits. This file runs as a script: nothing of
gptrs is imported. Each line of standard input is a JSON object; the answer is a line of standard
output: `{"texts": [...]}`, or `{"problem": "...", "conversation": 0}`. The end of the input ends
it.
"""

from __future__ import annotations

import functools
import json
import resource
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils


def main() -> None:
    """Answer the requests on standard input, each within the limits that it names."""
    for line in sys.stdin:
        request = json.loads(line)
        _limit_resources(request["cpu_seconds"], request["memory_bytes"])
        print(json.dumps(_answer(request)), flush=True)


def _answer(request: dict[str, Any]) -> dict[str, object]:
    """Return the texts of all conversations, or the problem with one of them."""
    texts: list[str] = []
    conversation: int | None = None
    room: int = request["characters"]
    try:
        template = _template(request["template"])
        for variables in request["conversations"]:
            conversation = len(texts)
            texts.append(_text(template, {**request["variables"], **variables}, room))
            room -= len(texts[-1])
    except MemoryError:
        problem = "it needs too much memory"
    except RecursionError:
        problem = "it is nested too deeply"
    except Exception as error:  # any exception that a template provokes is reported as its problem
        problem = f"{type(error).__name__}: {str(error)[:300]}"
    else:
        return {"texts": texts}
    return {"problem": problem, "conversation": conversation}


def _limit_resources(cpu_seconds: int, memory_bytes: int) -> None:
    """Limit processor time and total memory, and forbid files and core dumps.

    Soft limits, so that they can be raised for the next request; at the soft limit of processor
    time the system ends the process. Templates cannot raise them, since they do not reach
    `resource`.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime) + cpu_seconds,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    if sys.platform == "darwin":  # refuses to limit the address space
        del limits[resource.RLIMIT_AS]
    for kind, limit in limits.items():
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if most < 0 else min(limit, most), most))


@functools.lru_cache(maxsize=4)
def _template(source: str) -> jinja2.Template:
    """Return the compiled template, cached since a chat uses one for all turns."""
    return environment().from_string(source)


def _text(template: jinja2.Template, variables: dict[str, Any], room: int) -> str:
    """Return the rendered text; ValueError once it has more than `room` characters."""
    pieces: list[str] = []
    for piece in template.generate(**variables):
        room -= len(piece)
        if room < 0:
            raise ValueError("the text is too long")
        pieces.append(piece)
    return "".join(pieces)


def environment() -> jinja2.Environment:
    """Return the sandbox, with extensions, in which transformers runs chat templates."""
    sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    known = cast("dict[str, object]", sandbox.globals)
    known.update(raise_exception=_raise, strftime_now=_now, dict=_Dict(), namespace=_Namespace)
    return sandbox


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, which marks the model's output; only its text matters here.

    As in transformers, variables that are set inside end with it.
    """

    tags = {"generation"}  # noqa: RUF012 - so Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        inside = jinja2.nodes.CallBlock(self.call_method("_text_of"), [], [], body)
        return inside.set_lineno(line)

    def _text_of(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` as a function, without the attributes of the class."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        return dict.fromkeys(*values)


class _Namespace(jinja2.utils.Namespace):
    """`namespace`, which refuses names that start with an underscore."""

    def __init__(*values: Any, **named: Any) -> None:  # pyright: ignore[reportSelfClsParameterName]
        self, *rest = values
        attributes = dict(*rest, **named)
        for name in attributes:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace keeps no attribute {name!r}")


def _raise(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


if __name__ == "__main__":
    main()
