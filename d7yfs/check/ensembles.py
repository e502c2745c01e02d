"""The rules by which Triton refuses an ensemble, for itself and for the models of its steps. Pure.

Source: what Triton 2.51 does, case by case (`tests/triton/test_corpus.py`).

Called by `check_triton`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from d7yfs.check.model_config import Message
from d7yfs.check.model_rules import Fault, is_ensemble

_LATEST = -1


@dataclass(frozen=True, slots=True)
class Member:
    """A model that a step of an ensemble may name."""

    config: Message | None
    """None if it is not known."""
    versions: frozenset[int]
    """The versions that Triton loads."""
    is_refused: bool


def judge_ensemble(name: str, config: Message, models: Mapping[str, Member], *, knows_all: bool) -> Iterator[Fault]:
    """The faults of the ensemble `name`. `knows_all`: no repository has models but these."""
    if not is_ensemble(config):
        return
    if "ensemble_scheduling" not in config:
        yield Fault("its platform is ensemble, and it has no ensemble_scheduling", "add its steps")
        return
    for each in ("instance_group", "optimization", "model_warmup"):
        if each in config:
            yield Fault(f"an ensemble has no {each}", "remove it")
    steps = config.message("ensemble_scheduling").messages("step")
    if not steps:
        yield Fault("its ensemble_scheduling has no step", "add its steps")
    whole = True
    for number, step in enumerate(steps):
        for field in ("model_name", "input_map", "output_map"):
            if not (step.text(field) if field == "model_name" else field in step):
                whole = False
                yield Fault(f"step {number} has no {field}", "add it")
        yield from _judge_member(step, models, knows_all=knows_all)
    if whole and steps:
        yield from _judge_tensors(config, steps)
        yield from _judge_types(config, steps, models)
    if name in _below(name, models):
        yield Fault("it is a step of itself, by way of its steps", "break the circle")


def _judge_member(step: Message, models: Mapping[str, Member], *, knows_all: bool) -> Iterator[Fault]:
    name, version = step.text("model_name"), step.number("model_version")
    member = models.get(name)
    if member is None:
        if name and knows_all:
            yield Fault(f"model {name!r} of a step is not there", f"upload {name}, or correct model_name")
    elif member.is_refused:
        yield Fault(f"model {name!r} of a step would be refused", f"see what is said of {name}")
    elif member.config is not None and version != _LATEST and version not in member.versions:
        hint = "set model_version to -1 for the latest"
        yield Fault(f"version {version} of model {name!r} would not be loaded, which a step asks for", hint)


def _judge_tensors(config: Message, steps: list[Message]) -> Iterator[Fault]:
    """Every tensor must be written once, and read."""
    read = [tensor for step in steps for tensor in step.entries("input_map").values()]
    written = [tensor for step in steps for tensor in step.entries("output_map").values()]
    inputs = [each.text("name") for each in config.messages("input")]
    outputs = [each.text("name") for each in config.messages("output")]
    for kind, missing in (
        ("input {} is not used by a step", [each for each in inputs if each not in (*read, *written)]),
        ("output {} is not written by a step", [each for each in outputs if each not in (*written, *inputs)]),
        ("tensor {} is written by two steps", [each for each in sorted(set(written)) if written.count(each) > 1]),
        ("tensor {} is read, and nothing writes it", sorted(set(read) - set(written) - set(inputs))),
        ("tensor {} is written, and nothing reads it", sorted(set(written) - set(read) - set(outputs))),
    ):
        if missing:
            yield Fault(kind.format(repr(missing[0])), "correct input_map and output_map of its steps")
            return


def _judge_types(config: Message, steps: list[Message], models: Mapping[str, Member]) -> Iterator[Fault]:
    """A tensor must have one data type in all models that declare it."""
    types: dict[str, int] = {}
    for kind in ("input", "output"):
        for each in config.messages(kind):
            types.setdefault(each.text("name"), each.number("data_type"))
    for step in steps:
        member = models.get(step.text("model_name"))
        if member is None or member.config is None:
            continue
        for kind in ("input", "output"):
            declared = {each.text("name"): each.number("data_type") for each in member.config.messages(kind)}
            for key, tensor in step.entries(f"{kind}_map").items():
                found = declared.get(key, 0)
                if found and types.setdefault(tensor, found) not in (0, found):
                    said = f"tensor {tensor!r} has another data_type than {kind} {key!r} of {step.text('model_name')}"
                    yield Fault(said, "give both one data_type")


def _below(name: str, models: Mapping[str, Member]) -> set[str]:
    """All models of its steps, and of theirs."""
    found: set[str] = set()
    pending = [name]
    while pending:
        member = models.get(pending.pop())
        if member is None or member.config is None:
            continue
        steps = member.config.message("ensemble_scheduling").messages("step")
        new = {step.text("model_name") for step in steps} - found
        found |= new
        pending += new
    return found
