#!/usr/bin/env python3
"""JSON schemas for kubeconform, from what registries' packages carry.

usage: kubernetes_schemas.py OUT SOURCE…

SOURCE is the YAML of CustomResourceDefinitions, from which OUT/<kind>_<version>.json is made (kind in lower case), or a directory of
schemas of Kubernetes' own kinds (in the package kubernetes-validate), which is copied to OUT/<its name> without the names by which
kubeconform would look for what they refer to on the network.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml


def closed(schema: Any) -> Any:
    """`schema` with no room for fields that it does not name, but where it keeps unknown ones."""
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
    """Those of custom resources."""
    for definition in yaml.safe_load_all(path.read_text()):
        if definition and definition.get("kind") == "CustomResourceDefinition":
            for version in definition["spec"]["versions"]:
                schema = closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                name = f"{definition['spec']['names']['kind'].lower()}_{version['name']}.json"
                (out / name).write_text(json.dumps(schema))


def from_package(out: Path, directory: Path) -> None:
    """Those of one version of Kubernetes."""
    (out / directory.name).mkdir(exist_ok=True)
    for path in directory.glob("*.json"):
        schema = json.loads(path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#'))
        schema.pop("$id", None)
        (out / directory.name / path.name).write_text(json.dumps(schema))


if __name__ == "__main__":
    for source in map(Path, sys.argv[2:]):
        (from_package if source.is_dir() else from_definitions)(Path(sys.argv[1]), source)
