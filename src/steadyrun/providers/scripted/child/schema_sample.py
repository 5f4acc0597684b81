"""Builds a small value that matches a JSON Schema."""

from typing import Any

from steadyrun.providers.scripted.child.json_lines import Args

_DEEPEST = 30


def build_sample(schema: Any, root: Any, depth: int = 0) -> Any:
    """Build a value with the required properties only.

    Patterns, formats and conditions are not supported.
    """
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    inner = _find_inner(schema, root)
    if inner is not None:
        return build_sample(inner, root, depth + 1)
    kind = schema.get("type", "object")
    return _build_by_type(kind[0] if isinstance(kind, list) else kind, schema, root, depth)


def _find_inner(schema: Args, root: Any) -> Any:
    """Find the schema that this one refers to; None if it is complete itself."""
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return schema[key][0]
    return _resolve_reference(schema["$ref"], root) if "$ref" in schema else None


def _resolve_reference(reference: str, root: Any) -> Any:
    for name in reference.removeprefix("#/").split("/"):
        root = root[name]
    return root


def _build_by_type(kind: str, schema: Args, root: Any, depth: int) -> Any:
    if kind == "object":
        properties = schema.get("properties", {})
        return {
            name: build_sample(properties.get(name, {"type": "string"}), root, depth + 1)
            for name in schema.get("required", ())
        }
    if kind == "array":
        items = schema.get("items", {"type": "string"})
        return [build_sample(items, root, depth + 1) for _ in range(schema.get("minItems", 0))]
    if kind == "string":
        return "x" * schema.get("minLength", 0)
    return {
        "integer": schema.get("minimum", 0),
        "number": schema.get("minimum", 0),
        "boolean": False,
    }.get(kind)
