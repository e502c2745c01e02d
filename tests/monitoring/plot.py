"""The dashboard's panels as a picture, drawn from a Prometheus: for readers without Grafana."""

from __future__ import annotations

import io
import time
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, Formatter, FuncFormatter, PercentFormatter
from PIL import Image

from tests.monitoring.prometheus import Prometheus, panels

_COLUMNS = 4
_COLORS = 64
"""Colors of the picture: enough for lines and letters, and the file is a third as large."""
_LEGENDS = 6
"""The most legends of a panel; with more lines, only those above zero are named."""
_UNITS: dict[str, Formatter] = {
    "Bps": EngFormatter("B/s"),
    "bytes": EngFormatter("B"),
    "percentunit": PercentFormatter(1.0),
    "reqps": FuncFormatter(lambda value, _: f"{value:g}/s"),
    "s": EngFormatter("s"),
}


def plot(prometheus: Prometheus, path: Path, *, seconds: float) -> None:
    """Draw the last `seconds`."""
    now = time.time()
    shown = list(panels())
    rows = -(-len(shown) // _COLUMNS)
    figure, axes = plt.subplots(rows, _COLUMNS, figsize=(18, 2.3 * rows))
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    for panel, axis in zip(shown, axes.flat, strict=False):
        for expression, legend in panel.expressions:
            if legend.endswith(" limit"):
                continue  # It would flatten the other lines.
            asked = {"query": expression, "start": str(now - seconds), "end": str(now), "step": "1"}
            for series in prometheus.ask("query_range", **asked)["result"]:
                label = legend
                for name, value in series["metric"].items():
                    label = label.replace("{{" + name + "}}", value)
                times = [float(at) - now + seconds for at, _ in series["values"]]
                axis.plot(times, [float(value) for _, value in series["values"]], label=label or None)
        axis.set_title(panel.title, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.set_xlim(0, seconds)
        axis.set_ylim(bottom=0)
        if panel.unit in _UNITS:
            axis.yaxis.set_major_formatter(_UNITS[panel.unit])
        _name_lines(axis)
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=72)
    plt.close(figure)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(_COLORS, method=Image.Quantize.FASTOCTREE).save(path, optimize=True)


def _name_lines(axis: Axes) -> None:
    lines = [line for line in axis.get_lines() if not str(line.get_label()).startswith("_")]
    if len(lines) > _LEGENDS:
        lines = [line for line in lines if max(map(float, line.get_ydata()), default=0.0) > 0]  # type: ignore[arg-type]
    if lines:
        axis.legend(handles=lines, fontsize=6, loc="upper left")
