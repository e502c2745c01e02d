"""The results as a picture: a row for each case, with a dot for each peer relative to the best competitor."""

from __future__ import annotations

from pathlib import Path

from bench.results import OURS, Results

_COLOURS = {
    OURS: "#d6336c",
    "s3fs": "#be4bdb",
    "rclone": "#12b886",
    "geesefs": "#1c7ed6",
    "curl": "#fab005",
    "d7yfs-pyfuse3": "#adb5bd",
    "local": "#dee2e6",
}
_SHOWN = ("cold", "warm", "second", "remount")
"""Figures that are speeds or times; the others are counts."""
_SCALE = 0.08, 20.0
"""Dots beyond the scale are not shown; the table has their figures."""


def draw(results: Results, path: Path) -> None:
    """Write a PNG. A dot's place is the ratio to the best competitor's figure, on a logarithmic scale."""
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
    figure, axes = pyplot.subplots(figsize=(8.5, 1.2 + 0.26 * len(groups)), layout="constrained")
    places = range(len(groups), 0, -1)  # the first case at the top
    for peer in sorted(results.peers, key=lambda peer: peer == OURS):  # ours lies above the others
        ratios, heights = [], []
        for height, (case, metric, best) in zip(places, groups, strict=True):
            if value := results.median(case.name, metric.name, peer):
                ratios.append(value / best if metric.better == "higher" else best / value)
                heights.append(height)
        size = 70 if peer == OURS else 32
        axes.scatter(ratios, heights, size, label=peer, color=_COLOURS.get(peer), zorder=3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(*_SCALE)
    axes.set_xlabel("speed as a multiple of the best other mount (right of the line is faster)")
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20], ["0.1", "0.2", "0.5", "1", "2", "5", "10", "20"])
    axes.set_yticks(places, [f"{case.name} {metric.name}" for case, metric, _ in groups], fontsize="small")
    axes.grid(axis="y", color="#e9ecef")
    figure.legend(ncols=len(results.peers), loc="outside upper center", fontsize="small", frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
