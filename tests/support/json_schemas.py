"""Whether a JSON document is what ``--schema`` says of it."""

from __future__ import annotations

from functools import cache
from typing import Any

from collage_engine.cli.schemas import schemas

_schemas = cache(schemas)


def assert_fits(command: str, name: str, document: Any) -> None:
    """Fail where a document that a command printed does not fit its schema of this name."""
    schema = _schemas(command)[name]
    assert _fits(document, schema, schema.get("$defs", {})), f"{command} {name}: {document}"


def _fits(value: Any, wanted: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Whether a JSON value fits a schema, as far as msgspec's schemas go; no object has others."""
    if not wanted.keys() - {"description", "default"}:
        return True
    if "$ref" in wanted:
        return _fits(value, definitions[wanted["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in wanted:
        return any(_fits(value, each, definitions) for each in wanted["anyOf"])
    if "enum" in wanted:
        return value in wanted["enum"]
    kind = wanted.get("type")
    if kind == "object":
        known = wanted.get("properties", {})
        more = wanted.get("additionalProperties", False if known else {})
        return (
            isinstance(value, dict)
            and set(wanted.get("required", ())) <= set(value)
            and all(
                _fits(each, known[name], definitions)
                if name in known
                else isinstance(more, dict) and _fits(each, more, definitions)
                for name, each in value.items()
            )
        )
    if kind == "array":
        if not isinstance(value, list):
            return False
        first = wanted.get("prefixItems", ())
        items = [*first, *[wanted.get("items") or {}] * (len(value) - len(first))]
        return len(items) == len(value) and all(
            _fits(each, item, definitions) for each, item in zip(value, items, strict=True)
        )
    types: dict[Any, tuple[type, ...]] = {
        "integer": (int,),
        "number": (int, float),
        "string": (str,),
        "boolean": (bool,),
        "null": (type(None),),
    }
    return isinstance(value, types[kind]) and (kind == "boolean" or not isinstance(value, bool))
