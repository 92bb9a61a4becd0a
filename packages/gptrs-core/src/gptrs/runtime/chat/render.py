"""Renders chat templates; a process of its own, for templates come from strangers.

The sandbox of Jinja keeps a template from reaching Python. It does not keep it from computing for
hours or filling the memory with one expression, which limits of the operating system do. It runs as
a script: nothing of gptrs is imported here. It reads a JSON object from standard input and writes
one to standard output, `{"texts": [...]}` or `{"problem": "...", "conversation": 0}`.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils


def main() -> None:
    """Answer the one request on standard input within the limits that it names."""
    request = json.load(sys.stdin)
    _limit_resources(request["cpu_seconds"], request["memory_bytes"])
    answer = Answer()
    try:
        answer.render(request)
    except MemoryError:
        answer.problem = "it needs too much memory"
    except RecursionError:
        answer.problem = "it is nested too deeply"
    except Exception as error:  # whatever a template provokes is the template's problem
        answer.problem = f"{type(error).__name__}: {str(error)[:300]}"
    json.dump(answer.as_json(), sys.stdout)


class Answer:
    """The texts of all conversations, or the problem with one of them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.problem: str | None = None
        self._conversation: int | None = None

    def render(self, request: dict[str, Any]) -> None:
        """Render one after another."""
        template = environment().from_string(request["template"])
        room: int = request["characters"]
        for number, conversation in enumerate(request["conversations"]):
            self._conversation = number
            text = _text(template, {**request["variables"], "messages": conversation}, room)
            room -= len(text)
            self.texts.append(text)

    def as_json(self) -> dict[str, object]:
        """What goes to standard output."""
        if self.problem is None:
            return {"texts": self.texts}
        return {"problem": self.problem, "conversation": self._conversation}


def _limit_resources(cpu_seconds: int, memory_bytes: int) -> None:
    """No more time and memory than that, no file written, no core left behind."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + cpu_seconds
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        most = resource.getrlimit(kind)[1]
        lower = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (lower, lower))


def _text(template: jinja2.Template, variables: dict[str, Any], room: int) -> str:
    """The whole text, unless it grows too long on the way."""
    pieces: list[str] = []
    for piece in template.generate(**variables):
        room -= len(piece)
        if room < 0:
            raise ValueError("the text is too long")
        pieces.append(piece)
    return "".join(pieces)


def environment() -> jinja2.Environment:
    """What transformers gives to chat templates, which are written for it."""
    sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    known = cast("dict[str, object]", sandbox.globals)
    known.update(raise_exception=_raise, strftime_now=_now, dict=_Dict(), namespace=_Namespace)
    return sandbox


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, which marks what a model said: the text alone matters here."""

    tags = {"generation"}  # noqa: RUF012 - so Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dict:
    """`dict` as a function, without the attributes of the class."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        return dict.fromkeys(*values)


class _Namespace(jinja2.utils.Namespace):
    """`namespace`, which keeps no names that begin with an underscore."""

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
