"""The dashboard's panels as a picture, from what a Prometheus holds: for people who have no Grafana at hand."""

from __future__ import annotations

import time
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from tests.monitoring.prometheus import Prometheus, panels


def plot(prometheus: Prometheus, path: Path, *, seconds: float) -> None:
    """Draw the last `seconds`."""
    now = time.time()
    shown = list(panels())
    columns = 3
    figure, axes = plt.subplots(-(-len(shown) // columns), columns, figsize=(18, 3 * (-(-len(shown) // columns))))
    for panel, axis in zip(shown, axes.flat, strict=False):
        for expression, legend in panel.expressions:
            data = prometheus.ask("query_range", query=expression, start=str(now - seconds), end=str(now), step="1")[
                "result"
            ]
            for series in data:
                label = legend
                for name, value in series["metric"].items():
                    label = label.replace("{{" + name + "}}", value)
                times = [float(at) - now for at, _ in series["values"]]
                axis.plot(times, [float(value) for _, value in series["values"]], label=label or None)
        axis.set_title(f"{panel.title} [{panel.unit}]", fontsize=9)
        axis.set_ylim(bottom=0)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
