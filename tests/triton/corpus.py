"""Right and wrong models: for each what Triton 2.51 does, and what `d7yfs check` says.

Triton has only its Python backend here. A model of another backend that comes as far as that backend
`PASSES`: Triton then misses the backend's library, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

CODE = """\
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
IO = """\
input [ { name: "I" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "O" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
GOOD = f'backend: "python"\n{IO}'
ENSEMBLE = f'platform: "ensemble"\n{IO}'
STEP = """\
model_name: "{model}" model_version: {version}
input_map {{ key: "I" value: "{read}" }} output_map {{ key: "O" value: "{written}" }}
"""
ONLY_PYTHON = {"1/model.py": CODE}
EMPTY_VERSION = {"1/": ""}
WARMUP = 'inputs { key: "I" value { data_type: TYPE_INT64 dims: [ 1 ] input_data_file: "data.bin" } }'


class Verdict(Enum):
    """The verdict of Triton on a model that it is told to load."""

    LOADS = "loads"
    PART = "loads, leaves out a part"
    PASSES = "passes it to the backend"
    REFUSES = "refuses"
    HANGS = "never answers"


@dataclass(frozen=True, slots=True)
class Case:
    """One model, its files by path, and the two verdicts."""

    name: str
    config: str | bytes | None = GOOD
    triton: Verdict = Verdict.LOADS
    words: str = ""
    """Essential words of Triton's error or warning."""
    ours: str = ""
    """Essential words of the finding; empty if there must be none."""
    unknown: str = ""
    """The reason why `check` cannot know of the refusal."""
    files: dict[str, str] = field(default_factory=lambda: ONLY_PYTHON)

    def all_files(self) -> dict[str, bytes]:
        """All files by their path in the model; a path that ends in a slash is an empty directory."""
        files = {path: text.encode() for path, text in self.files.items()}
        if self.config is not None:
            files["config.pbtxt"] = self.config if isinstance(self.config, bytes) else self.config.encode()
        return files


def ensemble(model: str = "good", version: int = -1, read: str = "I", written: str = "O", more: str = "") -> str:
    """The configuration of an ensemble of one step."""
    step = STEP.format(model=model, version=version, read=read, written=written)
    return f"{ENSEMBLE}ensemble_scheduling {{ step [ {{ {step} }} ] }}\n{more}"


def _specific(*versions: int) -> str:
    return f"{GOOD}version_policy {{ specific {{ versions: {list(versions)} }} }}\n"


def _broken(name: str, config: str, words: str, ours: str = "", unknown: str = "") -> Case:
    """An ensemble that Triton refuses."""
    return Case(name, config, Verdict.REFUSES, words, ours, unknown, EMPTY_VERSION)


_LOADS, _PART, _PASSES, _REFUSES, _HANGS = Verdict
_NO_VERSION, _NO_BACKEND = "at least one version must be available", "Could not determine backend"
_TEXT, _NO_LIBRARY = "failed to read text proto", "unable to find backend library for backend '{}'"
_NO_FILE = "Python model file not found"
_OTHER_BACKEND = "the backend refuses it, and is not here"

VERSIONS = [
    Case("good"),
    Case("no_version", GOOD, _REFUSES, _NO_VERSION, "has no version", files={}),
    Case(
        "no_number",
        GOOD,
        _REFUSES,
        "fails to convert to integral number",
        "has no version",
        files={"v1/model.py": CODE},
    ),
    Case("leading_zero", GOOD, _REFUSES, "contains leading zeros", "no leading zeros", files={"01/model.py": CODE}),
    Case("zero", files={"0/model.py": CODE}),
    Case("also_other_directories", files=ONLY_PYTHON | {"labels/a.txt": "a", "configs/b.pbtxt": GOOD}),
    Case(
        "also_leading_zero",
        GOOD,
        _PART,
        "contains leading zeros",
        "is left out",
        files=ONLY_PYTHON | {"02/model.py": CODE},
    ),
    Case("empty_older_version", files={"1/": "", "2/model.py": CODE}),
    Case("number_and_more", GOOD, _HANGS, _NO_FILE, "version 1 has no model.py", files={"1x/model.py": CODE}),
    Case("version_that_is_a_file", files={"2/model.py": CODE, "3": "x"}),
    Case("specific_absent", _specific(3), _REFUSES, _NO_VERSION, "asks for 3"),
    Case("specific_partly", _specific(1, 3), _PART, "the version directory is not present", "asks for 3"),
    Case("specific_none", _specific(), _REFUSES, _NO_VERSION, "chooses no version"),
    Case(
        "latest_none", f"{GOOD}version_policy {{ latest {{ num_versions: 0 }} }}", _REFUSES, _NO_VERSION, "chooses no"
    ),
    Case("all_versions", f"{GOOD}version_policy {{ all {{}} }}", files={"1/model.py": CODE, "2/model.py": CODE}),
]
FILES = [
    Case("no_file", GOOD, _HANGS, _NO_FILE, "version 1 has no model.py", files={"1/other.py": CODE}),
    Case(
        "no_file_in_newest", GOOD, _HANGS, _NO_FILE, "version 2 has no", files={"1/model.py": CODE, "2/other.py": CODE}
    ),
    Case("other_file", f'{GOOD}default_model_filename: "other.py"', files={"1/other.py": CODE}),
    Case("other_file_absent", f'{GOOD}default_model_filename: "other.py"', _HANGS, _NO_FILE, "no other.py"),
    Case(
        "labels_absent",
        GOOD.replace('name: "O"', 'name: "O" label_filename: "labels.txt"'),
        _REFUSES,
        "labels.txt: No such file",
        "labels.txt is not there",
    ),
    Case(
        "labels_there",
        GOOD.replace('name: "O"', 'name: "O" label_filename: "labels.txt"'),
        files=ONLY_PYTHON | {"labels.txt": "a\n"},
    ),
    Case(
        "warmup_absent",
        f'{GOOD}model_warmup [ {{ name: "w" batch_size: 1 {WARMUP} }} ]',
        _REFUSES,
        "warmup/data.bin: No such file",
        "warmup/data.bin is not there",
    ),
    Case(
        "environment_absent",
        GOOD + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }',
        _REFUSES,
        "Failed to get the canonical path",
        "env.tar.gz is not there",
    ),
]
BACKENDS = [
    Case("guessed", None),
    Case("guessed_with_io", IO),
    Case("guessed_from_nothing", None, _REFUSES, _NO_BACKEND, "names no backend", files={}),
    Case("guessed_from_other", None, _REFUSES, _NO_BACKEND, "names no backend", files={"1/weights.bin": "x"}),
    Case(
        "guessed_in_first_directory",
        IO,
        _REFUSES,
        _NO_BACKEND,
        "0/ has no file",
        files=ONLY_PYTHON | {"0/readme.md": "x"},
    ),
    Case("guessed.by_name", None, _PASSES, _NO_LIBRARY.format("by_name"), files={"1/model.by_name": "x"}),
    Case("empty_config", ""),
    Case("guessed_by_file_name", f'{IO}default_model_filename: "model.py"'),
    Case(
        "file_name_of_none",
        f'{IO}default_model_filename: "other.py"',
        _REFUSES,
        "unexpected platform type ''",
        "tells of none",
        files={"1/other.py": CODE},
    ),
    *(
        Case(f"guessed_{backend}", None, _PASSES, _NO_LIBRARY.format(backend), files={f"1/{file}": "x"})
        for backend, file in (
            ("onnxruntime", "model.onnx"),
            ("tensorrt", "model.plan"),
            ("pytorch", "model.pt"),
            ("openvino", "model.xml"),
            ("tensorflow", "model.graphdef"),
        )
    ),
    Case(
        "guessed_saved",
        None,
        _PASSES,
        _NO_LIBRARY.format("tensorflow"),
        files={"1/model.savedmodel/saved_model.pb": "x"},
    ),
    Case("plan_directory", None, _REFUSES, _NO_BACKEND, "names no backend", files={"1/model.plan/x": "x"}),
    Case("onnx_directory", None, _PASSES, _NO_LIBRARY.format("onnxruntime"), files={"1/model.onnx/model.onnx": "x"}),
    *(
        Case(
            f"no_{backend}_file",
            f'backend: "{backend}"',
            _PASSES,
            _NO_LIBRARY.format(backend),
            f"no {file}",
            _OTHER_BACKEND,
        )
        for backend, file in (
            ("onnxruntime", "model.onnx"),
            ("tensorrt", "model.plan"),
            ("pytorch", "model.pt"),
            ("openvino", "model.xml"),
        )
    ),
    Case(
        "no_saved_model",
        'platform: "tensorflow_savedmodel"',
        _PASSES,
        _NO_LIBRARY.format("tensorflow"),
        "no model.savedmodel",
        _OTHER_BACKEND,
    ),
    Case(
        "file_for_a_gpu",
        'backend: "tensorrt" cc_model_filenames { key: "8.0" value: "ampere.plan" }',
        _PASSES,
        _NO_LIBRARY.format("tensorrt"),
        files={"1/ampere.plan": "x"},
    ),
    Case("unknown_backend", f'backend: "ours"\n{IO}', _PASSES, _NO_LIBRARY.format("ours")),
    Case(
        "unknown_platform", f'platform: "ours"\n{IO}', _REFUSES, "unexpected platform type 'ours'", "no platform 'ours'"
    ),
    Case(
        "other_platform",
        f'backend: "tensorrt" platform: "onnxruntime_onnx"\n{IO}',
        _REFUSES,
        "unexpected 'platform' and 'backend' pair",
        "is not one of backend 'tensorrt'",
        files={"1/model.plan": "x"},
    ),
]
TEXT = [
    Case("name", f'{GOOD}name: "name"'),
    Case("escaped_name", f'{GOOD}name: "escaped\\x5fname"'),
    Case("other_name", f'{GOOD}name: "another"', _REFUSES, "directory name must equal model name", "'another'"),
    Case("quotes_and_angles", GOOD.replace('"', "'").replace("{", "<").replace("}", ">")),
    Case("numbers_and_words", f"{GOOD}max_batch_size: 0x4 model_transaction_policy {{ decoupled: t }};"),
    Case("number_of_enum", GOOD.replace("TYPE_INT64", "9")),
    Case("no_utf8_in_comment", GOOD.encode() + b"# \xff\n"),
    Case("bracket", f"{GOOD}input [ {{", _REFUSES, _TEXT, "line 4"),
    Case("field", f"{GOOD}max_batch_sise: 3", _REFUSES, _TEXT, "is it max_batch_size?"),
    Case("enum", GOOD.replace("TYPE_INT64", "TYPE_LONG"), _REFUSES, _TEXT, "TYPE_LONG is no DataType"),
    Case("string_for_number", f'{GOOD}max_batch_size: "3"', _REFUSES, _TEXT, "max_batch_size is a string"),
    Case("word_for_string", GOOD.replace('"python"', "python"), _REFUSES, _TEXT, "must be a string in quotes"),
    Case("point", f"{GOOD}max_batch_size: 1.0", _REFUSES, _TEXT, "1.0 is no int32"),
    Case("too_large", f"{GOOD}max_batch_size: 99999999999", _REFUSES, _TEXT, "is no int32"),
    Case("no_bool", f"{GOOD}model_transaction_policy {{ decoupled: yes }}", _REFUSES, _TEXT, "yes is no bool"),
    Case("colon", GOOD.replace("dims:", "dims"), _REFUSES, _TEXT, "a colon must follow dims"),
    Case("comma", GOOD.replace("} ]", "}, ]"), _REFUSES, _TEXT, "line 2"),
    Case("twice", f"{GOOD}max_batch_size: 1 max_batch_size: 1", _REFUSES, _TEXT, "max_batch_size is set twice"),
    Case("choice", f"{GOOD}dynamic_batching {{}} sequence_batching {{}}", _REFUSES, _TEXT, "excludes dynamic_batching"),
    Case("mark", f"\ufeff{GOOD}", _REFUSES, _TEXT, "byte order mark"),
    Case(
        "agent",
        f'{GOOD}model_repository_agents {{ agents [ {{ name: "dragonfly" }} ] }}',
        _REFUSES,
        "libtritonrepoagent_dragonfly.so",
        "asks for Dragonfly's repository agent",
    ),
]
SETTINGS = [
    Case("no_io", 'backend: "python"'),
    Case("io_name", GOOD.replace('name: "I"', ""), _REFUSES, "model input must specify 'name'", "an input has no name"),
    Case("io_type", GOOD.replace("data_type: TYPE_INT64", "", 1), _REFUSES, "must specify 'data_type'", "no data_type"),
    Case("io_dims", GOOD.replace("dims: [ 1 ]", "", 1), _REFUSES, "must specify 'dims'", "input 'I' has no dims"),
    Case("io_dims_empty", GOOD.replace("[ 1 ]", "[]", 1), _REFUSES, "must specify 'dims'", "input 'I' has no dims"),
    Case("io_dims_zero", GOOD.replace("[ 1 ]", "[ 0 ]"), _REFUSES, "must be integer >= 1", "neither -1 nor"),
    Case(
        "io_of_another_backend",
        'backend: "tensorrt" input [ { name: "I" } ]',
        _PASSES,
        _NO_LIBRARY.format("tensorrt"),
        files={"1/model.plan": "x"},
    ),
    Case(
        "reshape",
        GOOD.replace("[ 1 ]", "[ 4 ] reshape { shape: [ 2, 3 ] }"),
        _REFUSES,
        "has different size for dims and reshape",
        "another size than its dims",
    ),
    Case("reshaped", GOOD.replace("[ 1 ]", "[ 4 ] reshape { shape: [ 2, 2 ] }")),
    Case("batch_negative", f"{GOOD}max_batch_size: -1", _REFUSES, "must be non-negative", "max_batch_size is negative"),
    Case("batching_without_batch", f"{GOOD}dynamic_batching {{}}"),
    Case(
        "preferred_batch",
        f"{GOOD}max_batch_size: 4 dynamic_batching {{ preferred_batch_size: [ 8 ] }}",
        _REFUSES,
        "preferred size must be <= max batch size",
        "preferred_batch_size 8",
    ),
    Case(
        "priority",
        f"{GOOD}max_batch_size: 4 dynamic_batching {{ priority_levels: 2 }}",
        _REFUSES,
        "default priority level must be in range",
        "default_priority_level",
    ),
    Case(
        "gpus_of_cpu",
        f"{GOOD}instance_group {{ kind: KIND_CPU gpus: [ 0 ] }}",
        _REFUSES,
        "has kind KIND_CPU but specifies one or more GPUs",
        "names gpus",
    ),
    Case(
        "no_gpu",
        f"{GOOD}instance_group {{ kind: KIND_GPU }}",
        _REFUSES,
        "no GPUs are available",
        unknown="the host of Triton may have GPUs",
    ),
    Case(
        "control",
        f'{GOOD}sequence_batching {{ control_input [ {{ name: "S" control [ {{ kind: CONTROL_SEQUENCE_END }} ] }} ] }}',
        _REFUSES,
        "sequence batching must specify either",
        unknown="controls of sequence batching are not judged",
    ),
    Case(
        "code_raises",
        GOOD,
        _REFUSES,
        "boom",
        unknown="code is not run",
        files={"1/model.py": "raise Exception('boom')"},
    ),
    Case("code_syntax", GOOD, _REFUSES, "SyntaxError", unknown="code is not run", files={"1/model.py": "def ("}),
]
ENSEMBLES = [
    Case("ensemble", ensemble(), files=EMPTY_VERSION),
    _broken("ensemble_dims", ensemble().replace("dims: [ 1 ]", "", 1), "inconsistent shape", "input 'I' has no dims"),
    Case("ensemble_no_version", ensemble(), _REFUSES, _NO_VERSION, "has no version", files={}),
    _broken("ensemble_absent", ensemble("absent"), "not available or ambiguous", "'absent'"),
    _broken("ensemble_version", ensemble(version=7), "required version 7 is not loaded", "version 7"),
    _broken(
        "ensemble_no_model_version",
        ensemble().replace("model_version: -1", ""),
        "required version 0 is not loaded",
        "version 0 of model 'good'",
    ),
    _broken(
        "ensemble_of_refused",
        ensemble("batch_negative"),
        "not available or ambiguous",
        "'batch_negative' of a step would be refused",
    ),
    _broken(
        "ensemble_of_unreadable",
        ensemble("bracket"),
        "not available or ambiguous",
        "'bracket' of a step would be refused",
    ),
    _broken("ensemble_above", ensemble("ensemble_absent"), "ambiguous", "'ensemble_absent'"),
    _broken("ensemble_circle", ensemble("ensemble_circle"), "circular", "a step of itself"),
    _broken("ensemble_no_step", f"{ENSEMBLE}ensemble_scheduling {{}}", "must specify 'step'", "has no step"),
    _broken("ensemble_no_scheduling", ENSEMBLE, "ensemble scheduling must be set", "no ensemble_scheduling"),
    _broken(
        "ensemble_no_platform",
        ensemble().replace("platform", "backend"),
        "whose platform is not ensemble",
        "platform is not ensemble",
    ),
    _broken(
        "ensemble_backend",
        f'backend: "python"\n{ensemble()}',
        "must have platform type 'ensemble' and empty backend",
        "an ensemble has no backend",
    ),
    _broken("ensemble_input", ensemble(read="X"), "'I' for ensemble", "input 'I' is not used"),
    _broken("ensemble_output", ensemble(written="X"), "'O' for ensemble", "output 'O' is not"),
    _broken(
        "ensemble_map",
        ensemble().replace('output_map { key: "O" value: "O" }', ""),
        "must specify 'output_map' in step 0",
        "step 0 has no output_map",
    ),
    _broken(
        "ensemble_type", ensemble().replace("TYPE_INT64", "TYPE_FP32", 1), "inconsistent data type", "another data_type"
    ),
    _broken(
        "ensemble_group",
        ensemble(more="instance_group {}"),
        "instance group should not be specified",
        "an ensemble has no instance_group",
    ),
    _broken(
        "ensemble_key",
        ensemble().replace('input_map { key: "I"', 'input_map { key: "X"'),
        "mapping to non-existing input X",
        unknown="model.py may add an input",
    ),
    _broken(
        "ensemble_shape",
        ensemble().replace("[ 1 ]", "[ 2 ]", 1),
        "inconsistent shape",
        unknown="shapes of two models are not compared",
    ),
]
CASES = [*VERSIONS, *FILES, *BACKENDS, *TEXT, *SETTINGS, *ENSEMBLES]
