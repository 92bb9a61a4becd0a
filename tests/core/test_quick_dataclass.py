"""Quick dataclasses behave like those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import ClassVar

import pytest

from gptrs.quick_dataclass import dataclass


def body(name):
    """The namespace of a class with all kinds of fields."""

    def set_sum(self):
        object.__setattr__(self, "total", self.a + self.b)

    return {
        "__module__": __name__,
        "__qualname__": name,
        "__annotations__": {
            "a": "int", "b": "int", "kind": "ClassVar[str]", "items": "list[int]", "total": "int",
            "hidden": "int", "later": "tuple",
        },
        "b": 2,
        "kind": "any",
        "items": field(default_factory=list, hash=False),
        "total": field(init=False),
        "hidden": field(default=7, repr=False, compare=False),
        "later": field(default_factory=tuple, init=False),
        "__post_init__": set_sum,
        "double": property(lambda self: 2 * self.a),
    }  # fmt: skip


OPTIONS = [
    {},
    {"frozen": True},
    {"slots": True},
    {"eq": False},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
]


@pytest.fixture(params=OPTIONS, ids=str)
def both(request):
    """The same class by both decorators."""
    options = request.param
    return tuple(
        decorator(**options)(type("Both", (), body("Both")))
        for decorator in (dataclasses.dataclass, dataclass)
    )


def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


CALLS = {
    "positions": lambda cls: cls(1),
    "keywords": lambda cls: cls(b=3, a=1, items=[4], hidden=5),
    "missing": lambda cls: cls(),
    "unknown": lambda cls: cls(1, other=2),
    "too many": lambda cls: cls(1, 2, [], 7, 8),
    "changed": lambda cls: setattr(cls(1), "a", 2),
    "new": lambda cls: setattr(cls(1), "other", 2),
    "deleted": lambda cls: delattr(cls(1), "a"),
    "equal": lambda cls: (cls(1) == cls(1), cls(1) == cls(2), cls(1) == cls(1, hidden=3)),
    "unequal class": lambda cls: cls(1) == 3,
    "hash": lambda cls: len(set(map(hash, [cls(1), cls(1, items=[2]), cls(2)]))),
    "replaced": lambda cls: dataclasses.replace(cls(1), b=5),
    "as a dict": lambda cls: dataclasses.asdict(cls(1)),
    "copied": lambda cls: copy.copy(cls(1, items=[2])),
    "deep": lambda cls: copy.deepcopy(cls(1, items=[2])),
    "signature": lambda cls: inspect.signature(cls),
    "fields": lambda cls: [each.name for each in dataclasses.fields(cls)],
    "matched": lambda cls: cls.__match_args__,
    "slots": lambda cls: getattr(cls, "__slots__", None),
    "factories": lambda cls: cls(1).items is cls(1).items,
    "class": lambda cls: (cls.kind, cls(3).double, cls.__doc__ is None),
}


@pytest.mark.parametrize("name", CALLS)
def test_both_behave_alike(both, name):
    def shown(cls):
        found = outcome(lambda: CALLS[name](cls))
        if name in ("too many", "new") and isinstance(found, tuple):
            return "refused"  # in words of its own
        return repr(found)

    standard, quick = both
    assert shown(quick) == shown(standard)
    assert shown(quick) == shown(standard), "and again, once it is compiled"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0
    origin: ClassVar[str] = "here"


@dataclass(frozen=True)
class Named(Point):
    name: str = "none"

    def __hash__(self):
        return 7


@dataclass(frozen=True)
class Hooked:
    x: int

    def __init__(self, x):
        raise AssertionError("a dataclass has its own")

    def __repr__(self):
        return "hooked"

    def __eq__(self, other):
        return True


def test_pickles_and_hierarchies():
    assert pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)
    named = Named(1, name="a")
    assert (named.x, named.y, named.name) == (1, 0, "a")
    assert named != Point(1)
    assert hash(named) == 7
    assert Named(1) == Named(1)
    assert repr(named) == "Named(x=1, y=0, name='a')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        named.x = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_methods_of_the_class_stay():
    assert repr(Hooked(1)) == "hooked"
    assert Hooked(1) == Hooked(2)


def test_methods_are_compiled_once():
    @dataclass(frozen=True)
    class Once:
        x: int

    before = Once.__init__
    Once(1)
    compiled = Once.__init__
    Once(2)
    assert before is not compiled
    assert Once.__init__ is compiled
    assert compiled.__code__.co_varnames == ("self", "x")
