"""A model's config.pbtxt by the schema of Triton, for the dry run. Pure.

Refuses what Triton's own parser refuses: fields that do not exist, values of another type, a field or
a choice that is set twice. Source: `model_config.proto` of Triton (June 2026, newer than 2.51 by
`model_metrics` and a few fields), and how protobuf's text format is read.

Called by `check_triton`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from d7yfs.errors import ConfigError
from d7yfs.servers.triton_config import Form, Value, parse_fields

_SCHEMA = """\
ModelRateLimiter: resources=Resource* priority=uint32
Resource: name=string global=bool count=uint32
ModelInstanceGroup: name=string kind=Kind count=int32 rate_limiter=ModelRateLimiter gpus=int32*
    secondary_devices=SecondaryDevice* profile=string* passive=bool host_policy=string
SecondaryDevice: kind=SecondaryDeviceKind device_id=int64
ModelTensorReshape: shape=int64*
ModelInput: name=string data_type=DataType format=Format dims=int64* reshape=ModelTensorReshape
    is_shape_tensor=bool allow_ragged_batch=bool optional=bool is_non_linear_format_io=bool
ModelOutput: name=string data_type=DataType dims=int64* reshape=ModelTensorReshape label_filename=string
    is_shape_tensor=bool is_non_linear_format_io=bool
BatchInput: kind=BatchInputKind target_name=string* data_type=DataType source_input=string*
BatchOutput: target_name=string* kind=BatchOutputKind source_input=string*
ModelVersionPolicy: latest=Latest|policy_choice all=All|policy_choice specific=Specific|policy_choice
Latest: num_versions=uint32
All:
Specific: versions=int64*
ModelOptimizationPolicy: graph=Graph priority=ModelPriority cuda=Cuda
    execution_accelerators=ExecutionAccelerators input_pinned_memory=PinnedMemoryBuffer
    output_pinned_memory=PinnedMemoryBuffer gather_kernel_buffer_threshold=uint32 eager_batching=bool
Graph: level=int32
Cuda: graphs=bool busy_wait_events=bool graph_spec=GraphSpec* output_copy_stream=bool
GraphSpec: batch_size=int32 input=string:Shape* graph_lower_bound=LowerBound
Shape: dim=int64*
LowerBound: batch_size=int32 input=string:Shape*
ExecutionAccelerators: gpu_execution_accelerator=Accelerator* cpu_execution_accelerator=Accelerator*
Accelerator: name=string parameters=string:string*
PinnedMemoryBuffer: enable=bool
ModelQueuePolicy: timeout_action=TimeoutAction default_timeout_microseconds=uint64 allow_timeout_override=bool
    max_queue_size=uint32
ModelDynamicBatching: preferred_batch_size=int32* max_queue_delay_microseconds=uint64 preserve_ordering=bool
    priority_levels=uint64 default_priority_level=uint64 default_queue_policy=ModelQueuePolicy
    priority_queue_policy=uint64:ModelQueuePolicy*
ModelSequenceBatching: direct=StrategyDirect|strategy_choice oldest=StrategyOldest|strategy_choice
    max_sequence_idle_microseconds=uint64 control_input=ControlInput* state=State* iterative_sequence=bool
Control: kind=ControlKind int32_false_true=int32* fp32_false_true=float* bool_false_true=bool*
    data_type=DataType
ControlInput: name=string control=Control*
InitialState: data_type=DataType dims=int64* zero_data=bool|state_data data_file=string|state_data name=string
State: input_name=string output_name=string data_type=DataType dims=int64* initial_state=InitialState*
    use_same_buffer_for_input_output=bool use_growable_memory=bool
StrategyDirect: max_queue_delay_microseconds=uint64 minimum_slot_utilization=float
StrategyOldest: max_candidate_sequences=int32 preferred_batch_size=int32* max_queue_delay_microseconds=uint64
    preserve_ordering=bool
ModelEnsembling: step=Step* max_inflight_requests=uint32
Step: model_name=string model_version=int64 input_map=string:string* output_map=string:string*
    model_namespace=string
ModelParameter: string_value=string
ModelWarmup: name=string batch_size=uint32 inputs=string:Input* count=uint32
Input: data_type=DataType dims=int64* zero_data=bool|input_data_type random_data=bool|input_data_type
    input_data_file=string|input_data_type
ModelOperations: op_library_filename=string*
ModelTransactionPolicy: decoupled=bool
ModelRepositoryAgents: agents=Agent*
Agent: name=string parameters=string:string*
ModelResponseCache: enable=bool
ModelMetrics: metric_control=MetricControl*
MetricControl: metric_identifier=MetricIdentifier histogram_options=HistogramOptions|metric_options
MetricIdentifier: family=string
HistogramOptions: buckets=double*
ModelConfig: name=string platform=string backend=string runtime=string version_policy=ModelVersionPolicy
    max_batch_size=int32 input=ModelInput* output=ModelOutput* batch_input=BatchInput* batch_output=BatchOutput*
    optimization=ModelOptimizationPolicy dynamic_batching=ModelDynamicBatching|scheduling_choice
    sequence_batching=ModelSequenceBatching|scheduling_choice
    ensemble_scheduling=ModelEnsembling|scheduling_choice instance_group=ModelInstanceGroup*
    default_model_filename=string cc_model_filenames=string:string* metric_tags=string:string*
    parameters=string:ModelParameter* model_warmup=ModelWarmup* model_operations=ModelOperations
    model_transaction_policy=ModelTransactionPolicy model_repository_agents=ModelRepositoryAgents
    response_cache=ModelResponseCache model_metrics=ModelMetrics
DataType: TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32
    TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16
Kind: KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL
BatchInputKind: BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
    BATCH_MAX_ELEMENT_COUNT_AS_SHAPE BATCH_ITEM_SHAPE BATCH_ITEM_SHAPE_FLATTEN
BatchOutputKind: BATCH_SCATTER_WITH_INPUT_SHAPE
ControlKind: CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END CONTROL_SEQUENCE_CORRID
SecondaryDeviceKind: KIND_NVDLA
Format: FORMAT_NONE FORMAT_NHWC FORMAT_NCHW
ModelPriority: PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN
TimeoutAction: REJECT DELAY
"""
"""One message or enumeration in each line. A field is `name=type`, with `*` if it is repeated, `key:value`
for a map, and `|choice` if it excludes the others of that choice."""

_FORMS = {
    "bool": re.compile(r"true|True|t|1|false|False|f|0"),
    "float": re.compile(r"-?(?:inf(?:inity)?|nan|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?f?)", re.IGNORECASE),
    "double": re.compile(r"-?(?:inf(?:inity)?|nan|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?f?)", re.IGNORECASE),
}
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)")
_RANGES = {
    "int32": range(-(2**31), 2**31),
    "uint32": range(2**32),
    "int64": range(-(2**63), 2**63),
    "uint64": range(2**64),
}
_SHOWN = 40
"""The most characters of a wrong value that are shown."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True)
class _Field:
    """The declaration of one field."""

    type: str
    is_repeated: bool
    choice: str


@dataclass(frozen=True, slots=True)
class Message:
    """The fields of one message that are set, by name; asked for another, it answers with protobuf's
    default."""

    values: Mapping[str, Sequence[str | int | Message]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str) -> str:
        return next(iter(self.texts(name)), "")

    def number(self, name: str) -> int:
        return next(iter(self.numbers(name)), 0)

    def message(self, name: str) -> Message:
        return next(iter(self.messages(name)), Message())

    def texts(self, name: str) -> list[str]:
        """Strings, and numbers with a point as they are written."""
        return [each for each in self.values.get(name, ()) if isinstance(each, str)]

    def numbers(self, name: str) -> list[int]:
        """Integers; of an enumeration the place in its list; 1 for true."""
        return [each for each in self.values.get(name, ()) if isinstance(each, int)]

    def messages(self, name: str) -> list[Message]:
        return [each for each in self.values.get(name, ()) if isinstance(each, Message)]

    def entries(self, name: str) -> dict[str, str]:
        """A map of strings. The last value of a key counts, as in protobuf."""
        return {each.text("key"): each.text("value") for each in self.messages(name)}


def read_config(text: str) -> Message:
    """The configuration of a model. Raises ConfigError with the line."""
    if text.startswith("\ufeff"):
        raise ConfigError("line 1: begins with a byte order mark, which Triton does not know")
    return _read_message(text, "ModelConfig", parse_fields(text))


def _read_message(text: str, kind: str, values: Iterable[Value]) -> Message:
    declared = _MESSAGES[kind]
    found: dict[str, list[str | int | Message]] = {}
    chosen: dict[str, str] = {}
    for value in values:
        name = value.name
        if name not in declared:
            near = difflib.get_close_matches(name, declared, 1)
            raise _error(text, value, f"{kind} has no field {name}" + (f"; is it {near[0]}?" if near else ""))
        if name in found and not declared[name].is_repeated:
            raise _error(text, value, f"{name} is set twice")
        choice = declared[name].choice
        if choice and (other := chosen.setdefault(choice, name)) != name:
            raise _error(text, value, f"{name} excludes {other}, which is set too")
        found.setdefault(name, []).append(_read_value(text, value, declared[name].type))
    return Message(found)


def _read_value(text: str, value: Value, kind: str) -> str | int | Message:
    if kind in _MESSAGES and value.form is Form.MESSAGE:
        return _read_message(text, kind, value.fields)
    form = Form.MESSAGE if kind in _MESSAGES else Form.STRING if kind == "string" else Form.WORD
    if value.form is not form:
        raise _error(text, value, f"{value.name} is {value.form.value}, and must be {form.value}")
    if not value.has_colon:
        raise _error(text, value, f"a colon must follow {value.name}")
    if kind == "string":
        return _ESCAPE.sub(_unescape, value.text)
    if kind in _FORMS and _FORMS[kind].fullmatch(value.text):
        return value.text if kind != "bool" else int(value.text in ("true", "True", "t", "1"))
    names = _ENUMERATIONS.get(kind, ())
    if value.text in names:
        return names.index(value.text)
    # An enumeration takes numbers too.
    if kind not in _FORMS and _INTEGER.fullmatch(value.text):
        number = int(re.sub(r"^(-?)0(?=[0-7])", r"\g<1>0o", value.text), 0)
        if number in _RANGES.get(kind, _RANGES["int32"]):
            return number
    near = difflib.get_close_matches(value.text, names, 1)
    raise _error(
        text, value, f"{value.name}: {value.text[:_SHOWN]} is no {kind}" + (f"; is it {near[0]}?" if near else "")
    )


def _unescape(found: re.Match[str]) -> str:
    hexadecimal, octal, letter = found.groups()
    if letter is not None:
        return _ESCAPED.get(letter, letter)
    return chr(int(hexadecimal, 16) if hexadecimal else int(octal, 8))


def _error(text: str, value: Value, what: str) -> ConfigError:
    return ConfigError(f"line {value.line_in(text)}: {what}")


def _read_schema() -> tuple[dict[str, dict[str, _Field]], dict[str, list[str]]]:
    messages: dict[str, dict[str, _Field]] = {}
    enumerations: dict[str, list[str]] = {}
    for line in _SCHEMA.replace("\n    ", " ").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and "=" not in words[0]:
            enumerations[name] = words
            continue
        fields = messages[name] = {}
        for word in words:
            declared, _, choice = word.partition("|")
            each, _, kind = declared.partition("=")
            key, _, value = kind.rstrip("*").rpartition(":")
            if key:
                messages[f"{name}.{each}"] = {"key": _Field(key, False, ""), "value": _Field(value, False, "")}
                kind = f"{name}.{each}*"
            fields[each] = _Field(kind.rstrip("*"), kind.endswith("*"), choice)
    return messages, enumerations


_MESSAGES, _ENUMERATIONS = _read_schema()
