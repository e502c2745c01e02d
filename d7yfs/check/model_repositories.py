"""The models of all repositories of one dry run, and the findings on them. Pure.

Called by `check_triton`, which has read the configurations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from d7yfs.check.ensembles import Member, judge_ensemble
from d7yfs.check.findings import Finding, count, ok, warning
from d7yfs.check.model_config import Message
from d7yfs.check.model_directory import ModelDirectory
from d7yfs.check.model_rules import Fault, judge, served_versions

PROBE = "triton"
_MAX_FINDINGS = 200
"""The most models that are named."""
_DEEPEST = 32
"""The most ensembles in each other whose refusal is followed."""


@dataclass(slots=True)
class _Model:
    """A model with all that is known of it."""

    where: str
    """Its URL."""
    directory: ModelDirectory
    config: Message | None
    """None if it is not known; empty if there is none."""
    faults: list[Fault]
    is_refused: bool = False
    """True if Triton refuses it for reasons of its own, of which another finding may tell."""


class ModelRepositories:
    """The models that one Triton may serve together."""

    def __init__(self) -> None:
        self._models: dict[str, list[_Model]] = defaultdict(list)
        self.has_all = True
        """True as long as no model may be missing here."""

    def add(self, where: str, directory: ModelDirectory, config: Message | None, *, is_refused: bool) -> None:
        """Add a model and judge it; `is_refused`: its configuration alone makes Triton refuse it."""
        faults = [] if config is None else list(judge(directory, config))
        refused = is_refused or any(each.is_refusal for each in faults)
        self._models[directory.name].append(_Model(where, directory, config, faults, refused))

    def findings(self) -> Iterator[Finding]:
        """One finding for each model that has faults, or one for all."""
        self._judge_ensembles()
        models = [model for same in self._models.values() for model in same]
        for name, same in self._models.items():
            if name and len(same) > 1:
                others = " and ".join(each.where for each in same)
                said = f"two repositories have model {name!r}, and one Triton that reads both refuses it: {others}"
                yield warning(PROBE, said, "rename one, or start Triton with --model-namespacing=true")
        faulty = [model for model in models if model.faults]
        yield from (_describe(model) for model in faulty[:_MAX_FINDINGS])
        if len(faulty) > _MAX_FINDINGS:
            said = f"{len(faulty) - _MAX_FINDINGS} more models have faults"
            yield warning(PROBE, said, "to see them, check the URL of a directory further down")
        if models and not any(model.faults or model.is_refused for model in models):
            yield ok(PROBE, f"{count(len(models), 'model', 'models')}, nothing found for which Triton would refuse one")

    def _judge_ensembles(self) -> None:
        """Judge the ensembles, and again those above one that is refused."""
        ensembles = [model for same in self._models.values() for model in same if model.config is not None]
        own = {id(model): model.faults for model in ensembles}
        refused = {model.where for model in ensembles if model.is_refused}
        for _ in range(_DEEPEST):
            members = {
                name: Member(
                    same[0].config,
                    frozenset(served_versions(same[0].directory, same[0].config or Message())),
                    same[0].is_refused,
                )
                for name, same in self._models.items()
            }
            for model in ensembles:
                assert model.config is not None
                found = list(judge_ensemble(model.directory.name, model.config, members, knows_all=self.has_all))
                model.faults = own[id(model)] + found
                model.is_refused = model.is_refused or bool(found)
            if (now := {model.where for model in ensembles if model.is_refused}) == refused:
                return
            refused = now


def _describe(model: _Model) -> Finding:
    refusals = [each for each in model.faults if each.is_refusal]
    verb = "Triton would refuse it" if refusals else "Triton would leave out a part"
    faults = refusals or model.faults
    hints = dict.fromkeys(each.hint for each in faults)
    return warning(PROBE, f"{model.where}: {verb}: {'; '.join(each.said for each in faults)}", "; ".join(hints))
