"""The results as a picture: bars of every peer relative to the best competitor, one group per case."""

from __future__ import annotations

from pathlib import Path

from bench.results import OURS, Results

_COLOURS = {
    OURS: "#d6336c",
    "s3fs": "#4c6ef5",
    "rclone": "#12b886",
    "curl": "#fab005",
    "d7yfs-pyfuse3": "#adb5bd",
    "local": "#dee2e6",
}
_SHOWN = ("cold", "warm", "second", "remount")
"""Figures that are speeds or times; the others are counts."""
_SCALE = 0.05, 20.0
"""Bars beyond the scale (mostly the local directory) are cut off; the table has their figures."""


def draw(results: Results, path: Path) -> None:
    """Write a PNG. A bar's height is the ratio to the best competitor's figure, on a logarithmic
    scale.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    groups = [
        (case, metric, best)
        for case, metric in results.rows()
        if metric.name in _SHOWN and (best := results.best(case.name, metric)) is not None
    ]
    if not groups:
        raise ValueError("nothing to draw: no competitor ran")
    peers = list(results.peers)
    width = 0.85 / len(peers)
    figure, axes = pyplot.subplots(figsize=(max(8.0, 0.9 * len(groups)), 5.5), layout="constrained")
    for index, peer in enumerate(peers):
        places, heights = [], []
        for at, (case, metric, best) in enumerate(groups):
            value = results.median(case.name, metric.name, peer)
            if value:
                places.append(at + (index - (len(peers) - 1) / 2) * width)
                heights.append(value / best if metric.better == "higher" else best / value)
        # Each bar starts at 1: above the line is better.
        axes.bar(places, [height - 1 for height in heights], width, bottom=1, label=peer, color=_COLOURS.get(peer))
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(*_SCALE)
    axes.set_ylabel("× the best competing mount (more is better)")
    axes.set_xticks(
        range(len(groups)), [f"{case.name}\n{metric.name}" for case, metric, _ in groups], rotation=60, ha="right"
    )
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.legend(ncols=len(peers), loc="upper left", fontsize="small")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
