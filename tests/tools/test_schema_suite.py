"""Answers of a schema validate: a schema of each keyword, written as the test suite writes them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("jsonschema", reason="jsonschema is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")
import schema_suite

SCHEMAS = {
    "boolean": {"type": "boolean"},
    "null or integer": {"type": ["null", "integer"]},
    "enum": {"enum": [1, "a}", None, [2], {"b": 3}]},
    "const": {"const": {"a": [False]}},
    "minimum and maximum": {"type": "integer", "minimum": -7, "maximum": 12},
    "exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "multipleOf": {"type": "integer", "multipleOf": 4, "minimum": 0, "maximum": 99},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-f]+-\\d{2}$"},
    "format": {"type": "string", "format": "date"},
    "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    "prefixItems": {"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}],
                    "items": False, "minItems": 2},
    "required": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"const": 2}},
                 "required": ["b"]},
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "patternProperties": {"type": "object", "patternProperties": {"^x[0-9]$": {"const": 1}},
                          "additionalProperties": False},
    "anyOf": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    "oneOf": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
    "$ref": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/n"},
             "$defs": {"n": {"enum": [1, 2]}}},
    "a tree": {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "required": ["v"],
               "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/t"}},
               "additionalProperties": False}}},
}  # fmt: skip


def run(tmp_path, capsys, schemas):
    cases = [{"description": name, "schema": schema} for name, schema in schemas.items()]
    (tmp_path / "cases.json").write_text(json.dumps(cases), "utf-8")
    code = schema_suite.main([str(tmp_path), "--answers", "4"])
    return code, capsys.readouterr().out


def test_every_answer_validates(tmp_path, capsys):
    code, told = run(tmp_path, capsys, SCHEMAS)
    assert (code, told.count("\n")) == (0, 1), told
    assert f"{len(SCHEMAS)} schemas, 0 refused" in told


def test_it_tells_wrong_answers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(schema_suite.Writer, "write", lambda *_: "3")
    code, told = run(tmp_path, capsys, {"boolean": {"type": "boolean"}})
    assert code == 1
    assert "WRONG cases: boolean: '3': 3 is not of type 'boolean'" in told
