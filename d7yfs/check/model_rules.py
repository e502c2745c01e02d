"""The rules by which Triton refuses a model before its backend sees it. Pure.

Source: what Triton 2.51 does, case by case (`tests/triton/test_corpus.py`), with the settings it has by
default: a configuration may be incomplete. `d7yfs.check.ensembles` has the rules between models.

Called by `check_triton`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from d7yfs.check.model_config import Message
from d7yfs.check.model_directory import GRAPH_DEF, MODEL_FILES, SAVED_MODEL, ModelDirectory

_PLATFORMS = {
    "tensorflow_savedmodel": "tensorflow",
    "tensorflow_graphdef": "tensorflow",
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
}
_ENSEMBLE = "ensemble"
_FILES = {backend: file for file, backend in MODEL_FILES.items()}
_TENSORFLOW_FILES = {SAVED_MODEL: "tensorflow_savedmodel", GRAPH_DEF: "tensorflow_graphdef"}
_KIND_CPU, _KIND_MODEL = 2, 3
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY/"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that keeps Triton from a model, or a part of it."""

    said: str
    hint: str
    is_refusal: bool = True
    """False if Triton loads the model, and leaves out a part."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The backend of a model, as Triton completes the configuration."""

    name: str
    platform: str
    file: str
    """The model's file or directory in each version; empty where only the backend knows it."""


def is_ensemble(config: Message) -> bool:
    """True if the model is an ensemble: it has no file."""
    return config.text("platform") == _ENSEMBLE


def served_versions(model: ModelDirectory, config: Message) -> list[int]:
    """The versions that Triton loads, by the version policy."""
    policy, there = config.message("version_policy"), sorted(model.versions())
    if "all" in policy:
        return there
    if "specific" in policy:
        return sorted(there_and_asked(model, config))
    count = policy.message("latest").number("num_versions") if "latest" in policy else 1
    return there[-count:] if count else []


def there_and_asked(model: ModelDirectory, config: Message) -> set[int]:
    """The versions of a specific policy that are there."""
    return model.versions().intersection(config.message("version_policy").message("specific").numbers("versions"))


def judge(model: ModelDirectory, config: Message) -> Iterator[Fault]:
    """The faults of one model; of a directory without a configuration with an empty one."""
    name = config.text("name")
    if model.name and name and name != model.name:
        yield Fault(f"its name is {name!r}, and its directory is {model.name!r}", "give both the same name")
    backend = complete(model, config)
    yield from _judge_backend(model, config, backend)
    if config.number("max_batch_size") < 0:
        yield Fault("max_batch_size is negative", "0 means no batching")
    yield from _judge_batching(config)
    yield from _judge_instances(config)
    for kind in ("input", "output"):
        for tensor in config.messages(kind):
            yield from _judge_tensor(
                config, kind, tensor, may_lack=backend.name != "python" and not is_ensemble(config)
            )
    yield from _judge_versions(model, config)
    yield from _judge_files(model, config, backend)


def complete(model: ModelDirectory, config: Message) -> Backend:
    """The backend that is named, or that Triton guesses from the files of the first directory."""
    name, platform, file = config.text("backend"), config.text("platform"), config.text("default_model_filename")
    subdirectories = model.subdirectories()
    there = {each: model.find(f"{subdirectories[0]}/{each}") for each in _CANDIDATES} if subdirectories else {}
    if not platform and name in ("", "tensorflow"):
        if file:
            platform = _TENSORFLOW_FILES.get(file, "")
        elif there.get(GRAPH_DEF) == "file":
            platform = _TENSORFLOW_FILES[GRAPH_DEF]
        elif there.get(SAVED_MODEL) == "directory":
            platform = _TENSORFLOW_FILES[SAVED_MODEL]
    if not name and platform:
        name = _PLATFORMS.get(platform, "")
    elif not name and file:
        name = MODEL_FILES.get(file, "")
    elif not name:
        name = next((MODEL_FILES[each] for each in MODEL_FILES if _may_be_model(each, there.get(each, ""))), "")
        if not name and "." in model.name:
            name = model.name.partition(".")[2]
            file = f"model.{name}"
    if _PLATFORMS.get(platform) == "tensorflow":
        file = file or next(each for each, of in _TENSORFLOW_FILES.items() if of == platform)
    elif not (name == "pytorch" and config.text("runtime")):
        file = file or _FILES.get(name, "")
    return Backend(name, platform, file)


_CANDIDATES = (*MODEL_FILES, SAVED_MODEL, GRAPH_DEF)


def _may_be_model(name: str, kind: str) -> bool:
    return kind == "file" or (kind == "directory" and name not in ("model.plan", "model.pt"))


def _judge_backend(model: ModelDirectory, config: Message, backend: Backend) -> Iterator[Fault]:
    if "ensemble_scheduling" in config or is_ensemble(config):
        if not is_ensemble(config):
            yield Fault("it has ensemble_scheduling, and its platform is not ensemble", 'set platform: "ensemble"')
        elif config.text("backend"):
            yield Fault("an ensemble has no backend", "remove the line with backend")
        return
    if not backend.name:
        if backend.platform:
            said = f"Triton knows no platform {backend.platform!r}"
        elif backend.file:
            said = f"it names no backend, and {backend.file} tells of none"
        else:
            first = next(iter(model.subdirectories()), "")
            where = f"{first}/ has no file that tells of one" if first else "no version has a file that tells of one"
            said = f"it names no backend, and {where}"
        yield Fault(said, f"set backend in {model.name or 'the model'}/config.pbtxt")
    elif backend.name in _PLATFORMS.values() and _PLATFORMS.get(backend.platform or _only_platform(backend.name)) != (
        backend.name
    ):
        said = f"platform {backend.platform!r} is not one of backend {backend.name!r}"
        yield Fault(said, "leave out platform, or name the backend's own")


def _only_platform(backend: str) -> str:
    """The platform that Triton adds; it adds none to TensorFlow."""
    return next((each for each, of in _PLATFORMS.items() if of == backend and of != "tensorflow"), "")


def _judge_batching(config: Message) -> Iterator[Fault]:
    batching, most = config.message("dynamic_batching"), config.number("max_batch_size")
    oldest = config.message("sequence_batching").message("oldest")
    for size in (*batching.numbers("preferred_batch_size"), *oldest.numbers("preferred_batch_size")):
        if not 0 < size <= most:
            yield Fault(f"preferred_batch_size {size} is not from 1 to max_batch_size, {most}", "correct one of both")
            break
    levels = batching.number("priority_levels")
    if levels and not 0 < batching.number("default_priority_level") <= levels:
        yield Fault(f"default_priority_level is not from 1 to priority_levels, {levels}", "set it")


def _judge_instances(config: Message) -> Iterator[Fault]:
    for group in config.messages("instance_group"):
        if "gpus" in group and group.number("kind") in (_KIND_CPU, _KIND_MODEL):
            yield Fault("an instance_group of KIND_CPU or KIND_MODEL names gpus", "remove gpus, or use KIND_GPU")
            return


def _judge_tensor(config: Message, kind: str, tensor: Message, *, may_lack: bool) -> Iterator[Fault]:
    """`may_lack`: a backend may add what is missing, from the model's file."""
    name, dims = tensor.text("name"), tensor.numbers("dims")
    if not name and not may_lack:
        yield Fault(f"an {kind} has no name", "name it")
        return
    said = f"{kind} {name!r}"
    if not tensor.number("data_type") and not may_lack:
        yield Fault(f"{said} has no data_type", "set one, as TYPE_FP32")
    if not dims and not may_lack:
        yield Fault(f"{said} has no dims", "set them; -1 means any size")
    if any(each < 1 and each != -1 for each in dims):
        yield Fault(f"{said} has a dimension that is neither -1 nor at least 1", "-1 means any size")
    if "reshape" in tensor and dims and -1 not in dims:
        shape = tensor.message("reshape").numbers("shape")
        if not shape and not config.number("max_batch_size"):
            yield Fault(f"{said} has an empty reshape, and the model does no batching", "set a shape")
        elif math.prod(shape) != math.prod(dims):
            yield Fault(f"the reshape of {said} has another size than its dims", "make the products equal")


def _judge_versions(model: ModelDirectory, config: Message) -> Iterator[Fault]:
    if endless := model.endless():
        said = f"directory {endless[0]!r} begins with a number that is no version: Triton 2.51 ends with it"
        yield Fault(said, "rename or remove it")
        return
    ignored, there = model.zero_led(), model.versions()
    served = served_versions(model, config)
    asked = config.message("version_policy").message("specific").numbers("versions")
    absent = ", ".join(map(str, sorted(set(asked) - there)))
    if not served:
        if ignored and not there:
            said = f"Triton does not count {', '.join(ignored)}: a version's number has no leading zeros"
        elif not there:
            said = "it has no version: no directory with a number as its name"
        elif absent:
            said = f"its version_policy asks for {absent}, which is not there"
        else:
            said = "its version_policy chooses no version"
        yield Fault(said, f"rename {ignored[0]} to {int(ignored[0])}" if ignored and not there else _UPLOAD)
    elif absent:
        yield Fault(f"its version_policy asks for {absent}, which is not there", _UPLOAD, is_refusal=False)
    if served and ignored:
        said = f"version {', '.join(ignored)} is left out: a version's number has no leading zeros"
        yield Fault(said, f"rename it to {int(ignored[0])}", is_refusal=False)


_UPLOAD = "upload a version, MODEL/1/…, or change version_policy"


def _judge_files(model: ModelDirectory, config: Message, backend: Backend) -> Iterator[Fault]:
    files = [backend.file] if backend.file else []
    if backend.name != "python" and files:
        files += config.entries("cc_model_filenames").values()
    knows = backend.name in _FILES or backend.name == "tensorflow"
    if files and knows and not is_ensemble(config):
        for version in served_versions(model, config):
            if not any(model.find(f"{version}/{each}") for each in files):
                yield Fault(
                    f"version {version} has no {' or '.join(files)}", "upload it, or set default_model_filename"
                )
    wanted = [each.text("label_filename") for each in config.messages("output")]
    for warmup in config.messages("model_warmup"):
        named = [each.message("value").text("input_data_file") for each in warmup.messages("inputs")]
        wanted += [f"warmup/{each}" for each in named if each]
    if backend.name == "python":
        parameters = {each.text("key"): each.message("value") for each in config.messages("parameters")}
        environment = parameters.get("EXECUTION_ENV_PATH", Message()).text("string_value")
        if environment.startswith(_MODEL_DIRECTORY):
            wanted.append(environment.removeprefix(_MODEL_DIRECTORY))
    for each in wanted:
        if each and ".." not in each and not model.find(each):
            yield Fault(f"{each} is not there, and its configuration names it", "upload it, or remove its name")
