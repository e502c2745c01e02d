"""A headless Chromium that looks at a page: what it makes of it, and a picture."""

from __future__ import annotations

import io
import subprocess
from dataclasses import dataclass
from pathlib import Path

from PIL import Image


@dataclass(frozen=True)
class Chromium:
    """A Chromium with a profile of its own. Root has to run it without its sandbox."""

    profile: Path
    dark: bool = False

    def _run(self, url: str, *options: str) -> tuple[bytes, str]:
        """Its output, and the page's complaints: violations of its policy, errors of scripts."""
        command = [
            *(
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
            ),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--enable-logging=stderr", f"--user-data-dir={self.profile}"),
            f"--blink-settings=preferredColorScheme={0 if self.dark else 1}",
            *(*options, url),
        ]
        done = subprocess.run(command, capture_output=True, timeout=120, check=True)
        said = done.stderr.decode(errors="replace").splitlines()
        return done.stdout, "\n".join(line for line in said if "CONSOLE" in line)

    def dom(self, url: str) -> tuple[str, str]:
        """The page's elements once it is loaded, as HTML; and its complaints."""
        page, complaints = self._run(url, "--dump-dom")
        return page.decode(), complaints

    def picture(self, url: str, *, width: int = 900, height: int = 1200) -> Image.Image:
        """The page as it looks."""
        path = self.profile / "picture.png"
        self.profile.mkdir(exist_ok=True)
        self._run(url, f"--window-size={width},{height}", f"--screenshot={path}")
        return Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
