"""A program for the Python of scripts/loaders.sh: it makes models in real formats, and loads them by
each library's own loader. It imports nothing of d7yfs.

    python loader_program.py make KIND DIRECTORY SIZE-MIB
    python loader_program.py serve LOADER

`serve` imports the library, and then loads from each directory that it reads from its input, in a
process of its own. It prints a line of JSON for each: the seconds of the load, and what the model
answers. Imports and digests are not part of the seconds. tests/servers/model_loaders.py runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

MIB = 1 << 20
PROMPT = "the quick brown fox"
TOKENS = 8
MARK = "loaded: "
"""Begins the line of a load."""
_SHARDS = 4
_LAYER_MIB = 24
"""About the size of one decoder layer at full width, in bfloat16."""

_OWN_IMPORT = "the library would import this in the load, whose seconds count"

Load = Callable[[], Any]
"""Loads a model and has it answer once. Tensors count as an answer, and are digested later."""


def main(arguments: list[str]) -> None:
    what, name, *rest = arguments
    if what == "make":
        MAKERS[name](Path(rest[0]), int(rest[1]) * MIB)
        return
    make_load = LOADERS[name]
    make_load(Path())  # The import.
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _answer(make_load(Path(line.rstrip("\n"))))
        if status := os.waitpid(child, 0)[1]:
            sys.exit(f"a load ended with wait status {status}")


def _answer(load: Load) -> NoReturn:
    """Load, print the line, and end. Servers' threads and destructors are no part of the answer."""
    try:
        start = time.perf_counter()
        answer = load()
        elapsed_s = time.perf_counter() - start
        # Libraries print lines of their own, and may leave one without an end.
        print("\n" + MARK + json.dumps([elapsed_s, _plain(answer)]), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _plain(answer: Any) -> Any:
    """The answer as JSON: a digest for tensors or bytes by name."""
    if not isinstance(answer, dict):
        return answer
    digest = hashlib.sha256()
    for name in sorted(answer):
        digest.update(name.encode())
        digest.update(_bytes_of(answer[name]))
    return [len(answer), digest.hexdigest()]


def _bytes_of(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    import torch

    return value.detach().contiguous().view(-1).view(torch.uint8).numpy().data


# Makers


def _shape(size_bytes: int) -> tuple[int, int]:
    """Width and layers of a llama of about this many bytes in bfloat16. A layer has 16 · width²
    numbers: four matrices of attention, three of four times the size.
    """
    width = 256
    while width < 1024 and 4 * 32 * width * width <= size_bytes // 4:
        width *= 2
    return width, max(2, size_bytes // (32 * width * width))


def make_llama(directory: Path, size_bytes: int) -> None:
    """Write a llama of random weights in four shards of safetensors, with a tokenizer of its own."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=list(special.values()), initial_alphabet=alphabet)
    tokenizer.train_from_iterator([PROMPT] * 3, trainer)
    width, layers = _shape(size_bytes)
    torch.manual_seed(7)
    heads = width // 64
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    size_bytes = 2 * sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(directory, max_shard_size=size_bytes // _SHARDS + MIB)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(directory)


def make_gguf(directory: Path, size_bytes: int) -> None:
    """Write a llama of random weights as GGUF, in float16."""
    import gguf
    import numpy

    directory.mkdir(parents=True, exist_ok=True)
    width, layers = _shape(size_bytes)
    heads, vocabulary = width // 64, 320
    writer = gguf.GGUFWriter(directory / "model.gguf", "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(4 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(64)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    kinds = gguf.TokenType
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256]
    words = [f"▁w{number}" for number in range(vocabulary - len(pieces))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*pieces, *words])
    writer.add_token_scores([0.0] * len(pieces) + [-float(number) for number in range(len(words))])
    writer.add_token_types([*types, *[kinds.NORMAL] * len(words)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    source = numpy.random.default_rng(7)

    def add(name: str, *shape: int) -> None:
        values = source.standard_normal(shape, dtype=numpy.float32) * numpy.float32(shape[-1] ** -0.5)
        writer.add_tensor(name, values.astype(numpy.float16))

    def add_norm(name: str) -> None:
        writer.add_tensor(name, numpy.ones(width, dtype=numpy.float32))

    add("token_embd.weight", vocabulary, width)
    add("output.weight", vocabulary, width)
    add_norm("output_norm.weight")
    for layer in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}.weight", width, width)
        add(f"blk.{layer}.ffn_gate.weight", 4 * width, width)
        add(f"blk.{layer}.ffn_up.weight", 4 * width, width)
        add(f"blk.{layer}.ffn_down.weight", width, 4 * width)
        add_norm(f"blk.{layer}.attn_norm.weight")
        add_norm(f"blk.{layer}.ffn_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_adapters(directory: Path, size_bytes: int) -> None:
    """Write LoRA adapters, each a directory of a configuration and some 20 KiB of weights: one per
    20 KiB of the size. They fit a llama of one MiB, which stands beside them in `base`.
    """
    import peft
    import safetensors.torch
    import torch
    from transformers import AutoModelForCausalLM

    make_llama(directory / "base", MIB)
    model = AutoModelForCausalLM.from_pretrained(directory / "base")
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    first = directory / "adapters" / "adapter-0000"
    peft.get_peft_model(model, config).save_pretrained(first)
    (first / "README.md").unlink(missing_ok=True)
    weights = safetensors.torch.load_file(first / "adapter_model.safetensors")
    torch.manual_seed(7)
    for number in range(max(3, size_bytes // (20 << 10))):
        path = directory / "adapters" / f"adapter-{number:04}"
        path.mkdir(exist_ok=True)
        (path / "adapter_config.json").write_bytes((first / "adapter_config.json").read_bytes())
        own = {name: torch.randn_like(tensor) for name, tensor in weights.items()}
        safetensors.torch.save_file(own, path / "adapter_model.safetensors", metadata={"format": "pt"})


def make_torch(directory: Path, size_bytes: int) -> None:
    """Write a state dict as torch saves it."""
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    each_bytes = size_bytes // 64
    tensors = {f"layer.{n}": torch.randint(0, 255, (each_bytes,), dtype=torch.uint8) for n in range(64)}
    torch.save(tensors, directory / "model.pt")


MAKERS: dict[str, Callable[[Path, int], None]] = {
    "llama": make_llama,
    "gguf": make_gguf,
    "adapters": make_adapters,
    "torch": make_torch,
}


# Loaders


def _shards(directory: Path) -> list[str]:
    return sorted(map(str, directory.glob("*.safetensors")))


def _kept(weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A copy of each tensor, as a server copies it into its model."""
    return {name: tensor.clone() for name, tensor in weights}


def transformers_model(directory: Path) -> Load:
    """AutoModelForCausalLM and AutoTokenizer; the answer is the digest of the logits."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    assert LlamaForCausalLM, _OWN_IMPORT

    def load() -> Any:
        tokenizer = AutoTokenizer.from_pretrained(directory)
        model = AutoModelForCausalLM.from_pretrained(directory)
        with torch.inference_mode():
            return {"logits": model(**tokenizer(PROMPT, return_tensors="pt")).logits}

    return load


def peft_model(directory: Path) -> Load:
    """A base model and three of its adapters; the answer is the digest of the logits of each."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def load() -> Any:
        tokenizer = AutoTokenizer.from_pretrained(directory / "base")
        model = AutoModelForCausalLM.from_pretrained(directory / "base")
        tokens = tokenizer(PROMPT, return_tensors="pt")
        first, *others = sorted((directory / "adapters").iterdir())[:3]
        tuned = peft.PeftModel.from_pretrained(model, first, adapter_name=first.name)
        for other in others:
            tuned.load_adapter(other, adapter_name=other.name)
        logits = {}
        for name in tuned.peft_config:
            tuned.set_adapter(name)
            with torch.inference_mode():
                logits[name] = tuned(**tokens).logits
        return logits

    return load


def peft_scan(directory: Path) -> Load:
    """List a directory of adapters, and load configuration and weights of each."""
    from peft import PeftConfig
    from peft.utils.save_and_load import load_peft_weights

    def load() -> Any:
        found = {}
        for path in (directory / "adapters").iterdir():
            config = PeftConfig.from_pretrained(path)
            for key, tensor in load_peft_weights(str(path), device="cpu").items():
                found[f"{path.name} {config.peft_type} {key}"] = tensor
        return found

    return load


def plain_scan(directory: Path) -> Load:
    """List a directory of adapters, and read each file of each: what the scan costs without a
    library.
    """

    def load() -> Any:
        found = {}
        for path in (directory / "adapters").iterdir():
            for file in path.iterdir():
                found[f"{path.name}/{file.name}"] = file.read_bytes()
        return found

    return load


def _vllm(directory: Path, **options: Any) -> Load:
    import vllm

    def load() -> Any:
        engine = vllm.LLM(
            str(directory), max_model_len=64, max_num_seqs=1, enforce_eager=True, disable_log_stats=True, **options
        )
        wanted = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=1, ignore_eos=True)
        (answer,) = engine.generate([PROMPT], wanted, use_tqdm=False)
        return [list(answer.outputs[0].token_ids), answer.outputs[0].cumulative_logprob]

    return load


def vllm_server(directory: Path) -> Load:
    """vLLM's engine; the answer is the tokens and their probability."""
    return _vllm(directory)


def vllm_streamer(directory: Path) -> Load:
    """The same with Run:ai's streamer."""
    return _vllm(directory, load_format="runai_streamer")


def vllm_weights(directory: Path, strategy: str | None = None) -> Load:
    """The weights alone, by the reader that vLLM's default loader uses."""
    from vllm.model_executor.model_loader import weight_utils

    return lambda: _kept(weight_utils.safetensors_weights_iterator(_shards(directory), False, strategy))


def vllm_prefetch(directory: Path) -> Load:
    """The same with `--safetensors-load-strategy=prefetch`."""
    return vllm_weights(directory, "prefetch")


def sglang_weights(directory: Path) -> Load:
    """The weights alone, by the reader that SGLang's default loader uses, with its number of
    threads.
    """
    from sglang.srt.model_loader import loader, weight_utils

    threads = loader.DefaultModelLoader.DEFAULT_NUM_THREADS
    read = weight_utils.buffered_multi_thread_safetensors_weights_iterator
    return lambda: _kept(read(_shards(directory), max_workers=threads))


def streamer_weights(directory: Path) -> Load:
    """Run:ai's model streamer."""
    import torch
    from runai_model_streamer import SafetensorsStreamer

    assert torch, _OWN_IMPORT

    def load() -> Any:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(_shards(directory))
            return _kept(streamer.get_tensors())

    return load


def fastsafetensors_weights(directory: Path) -> Load:
    """fastsafetensors without GPUDirect, into memory of the processor."""
    import torch
    from fastsafetensors import fastsafe_open

    assert torch, _OWN_IMPORT

    def load() -> Any:
        with fastsafe_open(filenames=_shards(directory), nogds=True, device="cpu", debug_log=False) as file:
            names = file.keys()  # The file itself is no iterable of names.
            return _kept((name, file.get_tensor(name)) for name in names)

    return load


def llama_cpp(directory: Path) -> Load:
    """llama.cpp's server; the answer is the tokens of a completion."""
    import xllamacpp

    def load() -> Any:
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(directory / "model.gguf")
        parameters.n_ctx = 256
        parameters.n_parallel = 1
        parameters.verbosity = -1
        server = xllamacpp.Server(parameters)
        wanted = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True, "logprobs": 1}
        answer = server.handle_completions(wanted)
        (choice,) = answer["choices"]
        return [choice["text"], choice["logprobs"]]

    return load


def torch_load(directory: Path) -> Load:
    """torch.load(mmap=True). It returns before it reads, so a byte of every page is read."""
    import torch

    def load() -> Any:
        tensors = torch.load(directory / "model.pt", mmap=True, weights_only=True)
        for tensor in tensors.values():
            tensor[::4096].sum()
        return tensors

    return load


def plan_file(directory: Path) -> Load:
    """A file read whole with read(2), as an application reads a TensorRT plan before it hands it to
    `deserialize_cuda_engine`.
    """

    return lambda: {Path(shard).name: Path(shard).read_bytes() for shard in _shards(directory)}


LOADERS: dict[str, Callable[[Path], Load]] = {
    "transformers": transformers_model,
    "vllm": vllm_server,
    "vllm runai_streamer": vllm_streamer,
    "vllm weights": vllm_weights,
    "vllm prefetch": vllm_prefetch,
    "sglang weights": sglang_weights,
    "runai streamer": streamer_weights,
    "fastsafetensors": fastsafetensors_weights,
    "llama.cpp": llama_cpp,
    "peft": peft_model,
    "peft scan": peft_scan,
    "plain scan": plain_scan,
    "torch": torch_load,
    "plan file": plan_file,
}

if __name__ == "__main__":
    main(sys.argv[1:])
