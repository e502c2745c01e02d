#!/usr/bin/env python3
"""JSON schemas for kubeconform, made from the packages of registries.

usage: kubernetes_schemas.py OUT SOURCE…

SOURCE is the YAML of CustomResourceDefinitions, or a directory of schemas of Kubernetes' own kinds
(in the package kubernetes-validate). From the YAML it makes OUT/<kind>_<version>.json, with the
kind in lower case. It copies a directory to OUT/<its name>. It removes the names by which
kubeconform would search references on the network.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml


def closed(schema: Any) -> Any:
    """The `schema` without room for fields that it does not name, except where it keeps unknown
    ones.
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: closed(value) for name, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        schema = {"type": ["integer", "string"]}
    return schema


def from_definitions(out: Path, path: Path) -> None:
    """Write the schemas of custom resources."""
    for definition in yaml.safe_load_all(path.read_text()):
        if definition and definition.get("kind") == "CustomResourceDefinition":
            for version in definition["spec"]["versions"]:
                schema = closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                name = f"{definition['spec']['names']['kind'].lower()}_{version['name']}.json"
                (out / name).write_text(json.dumps(schema))


def from_package(out: Path, directory: Path) -> None:
    """Write the schemas of one version of Kubernetes."""
    (out / directory.name).mkdir(exist_ok=True)
    for path in directory.glob("*.json"):
        schema = json.loads(path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#'))
        schema.pop("$id", None)
        (out / directory.name / path.name).write_text(json.dumps(schema))


if __name__ == "__main__":
    for source in map(Path, sys.argv[2:]):
        (from_package if source.is_dir() else from_definitions)(Path(sys.argv[1]), source)
