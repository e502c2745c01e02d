"""Libraries that load models, in the Python of scripts/loaders.sh, for `make integration-loaders` and
the bench. A process per library imports it once, and each load is a child of that process
(tests/servers/loader_program.py).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.loader_program import LOADERS, MARK

_PROGRAM = Path(__file__).with_name("loader_program.py")
_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "loaders.sh"
_LIMIT_S = 400.0
"""vLLM imports and compiles for a minute and more on a busy machine."""


class LoaderError(Exception):
    """A loader that failed, with the end of what it said."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """One load: its seconds, and the model's answer or a digest of it."""

    elapsed_s: float
    answer: Any


@dataclass(slots=True)
class _Library:
    """A process that has imported a library."""

    process: subprocess.Popen[bytes]
    said: Path

    def load(self, directory: Path) -> Loaded:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{directory}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise LoaderError(self._last_words()) from None
        deadline = time.monotonic() + _LIMIT_S
        found = b""
        while not (found.endswith(b"\n") and found.splitlines()[-1].startswith(MARK.encode())):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not part:
                why = "the library ended" if ready else f"not done within {_LIMIT_S:g} s"
                raise LoaderError(f"{directory}: {why}: {self._last_words()}")
            found += part
        elapsed_s, answer = json.loads(found.splitlines()[-1][len(MARK) :])
        return Loaded(elapsed_s, answer)

    def _last_words(self) -> str:
        return self.said.read_text(errors="replace")[-2000:].strip()

    def close(self) -> None:
        """End it and its children, one of which may wait for a mount."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass(slots=True)
class ModelLoaders:
    """The libraries of one Python. What they keep for later goes to `home`."""

    python: Path
    home: Path
    _libraries: dict[str, _Library] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for library in self._libraries.values():
            library.close()

    def make(self, kind: str, directory: Path, size_mib: int) -> None:
        """Write a model of a kind that loader_program.py has. Raises LoaderError."""
        done = subprocess.run(
            self._command("make", kind, str(directory), str(size_mib)),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
        )
        if done.returncode:
            raise LoaderError(f"{kind}: exit status {done.returncode}: {done.stderr[-2000:].strip()}")

    def load(self, loader: str, directory: Path) -> Loaded:
        """Load a model in a new process, which has the library's modules. Raises LoaderError."""
        if loader not in self._libraries:
            self._libraries[loader] = self._start(loader)
        return self._libraries[loader].load(directory)

    def close(self, loader: str) -> None:
        """End the process of a library, whose memory others may need."""
        if library := self._libraries.pop(loader, None):
            library.close()

    def _start(self, loader: str) -> _Library:
        assert loader in LOADERS
        said = self.home / f"{loader.replace(' ', '-')}.log"
        with said.open("wb") as out:
            process = subprocess.Popen(
                self._command("serve", loader),
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                bufsize=0,
                start_new_session=True,
            )
        return _Library(process, said)

    def _command(self, *arguments: str) -> list[str]:
        # -P: the program's directory is not the first place for imports, because its modules have
        # the names of libraries.
        return [str(self.python), "-P", str(_PROGRAM), *arguments]

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "PYTHONWARNINGS": "ignore",
        }


def find_python() -> Path | None:
    """The Python that scripts/loaders.sh installs, or None."""
    found = subprocess.run([_SCRIPT, "--installed"], stdout=subprocess.PIPE, text=True, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 else None
