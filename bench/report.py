"""The results as tables for the terminal, as Markdown for the README, and as JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.results import OURS, Results, Verdict


def tables(results: Results) -> Group:
    """Figures and goals, then costs, then failures."""
    figures = Table(title="medians", title_justify="left", caption="vs best: above 1 is better", caption_justify="left")
    figures.add_column("case", no_wrap=True)
    for peer in results.peers:
        figures.add_column(peer, justify="right", no_wrap=True)
    figures.add_column("unit")
    figures.add_column("vs best", justify="right")
    figures.add_column("goal")
    previous = ""
    for case, metric in results.rows():
        if case.name != previous and previous:
            figures.add_section()
        previous = case.name
        cells = [escape(_cell(results, case.name, metric.name, peer)) for peer in results.peers]
        goals = Text("\n").join(_verdict(verdict) for verdict in results.verdicts(case.name, metric))
        figures.add_row(
            f"{case.name} {metric.name}", *cells, metric.unit, _ratio(results.ratio(case.name, metric)), goals
        )
    parts: list[Any] = [figures, *(_verdict(verdict) for verdict in results.bounds()), _cost_table(results)]
    parts += [
        Text(f"{case}: {peer}: {why}", style="red" if peer == OURS else "yellow")
        for (case, peer), why in results.failures.items()
    ]
    return Group(*parts)


def markdown(results: Results) -> str:
    """The tables of figures and costs for bench/README.md: what was measured, without our goals."""
    lines = [
        "| case | " + " | ".join(results.peers) + " | unit | × the best |",
        "|---|" + "---:|" * len(results.peers) + "---|---:|",
    ]
    for case, metric in results.rows():
        cells = [_cell(results, case.name, metric.name, peer) for peer in results.peers]
        ratio = _ratio(results.ratio(case.name, metric))
        lines.append(f"| {case.name} {metric.name} | " + " | ".join(cells) + f" | {metric.unit} | {ratio} |")
    rivals = [peer for peer in results.peers if any(results.costs(case, peer) for case in results.cases)]
    lines += [
        "",
        "| costs of the cold part: CPU s/GiB · peak RSS MB · GETs · MB from the store | " + " | ".join(rivals) + " |",
        "|---|" + "---:|" * len(rivals),
    ]
    for case in results.cases:
        lines.append(
            f"| {case.name} | " + " | ".join(" · ".join(_costs(results, case.name, peer)) for peer in rivals) + " |"
        )
    return "\n".join(lines) + "\n"


def as_json(results: Results, machine: dict[str, Any]) -> dict[str, Any]:
    """All results as JSON, with every sample."""
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            **machine,
        },
        "sizes": asdict(results.sizes),
        "cases": {
            case.name: {
                "title": case.title,
                "metrics": {
                    metric.name: {
                        "unit": metric.unit,
                        "better": metric.better,
                        "medians": {peer: results.median(case.name, metric.name, peer) for peer in results.peers},
                        "vs_best": results.ratio(case.name, metric),
                        "goals": [asdict(verdict) for verdict in results.verdicts(case.name, metric)],
                    }
                    for metric in case.metrics
                },
                "costs": {
                    peer: asdict(costs) for peer in results.peers if (costs := results.costs(case, peer)) is not None
                },
                "samples": {
                    peer: [asdict(sample) for sample in rows]
                    for peer in results.peers
                    if (rows := results.samples.get((case.name, peer)))
                },
                "failures": {peer: why for (name, peer), why in results.failures.items() if name == case.name},
            }
            for case in results.cases
        },
        "bounds": [asdict(verdict) for verdict in results.bounds()],
    }


def _cost_table(results: Results) -> Table:
    table = Table(title="costs of the cold part", title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("peer", no_wrap=True)
    for name in ("CPU s/GiB", "peak RSS MB", "GETs", "MB from store", "LISTs", "HEADs"):
        table.add_column(name, justify="right")
    for case in results.cases:
        shown = case.name
        for peer in results.peers:
            costs = results.costs(case, peer)
            if costs is not None:
                table.add_row(
                    shown, peer, *_costs(results, case.name, peer), f"{costs.lists:.0f}", f"{costs.heads:.0f}"
                )
                shown = ""
        table.add_section()
    return table


def _costs(results: Results, case_name: str, peer: str) -> list[str]:
    case = next(case for case in results.cases if case.name == case_name)
    costs = results.costs(case, peer)
    if costs is None:
        return []
    cpu = "–" if costs.cpu_s_per_gib is None else f"{costs.cpu_s_per_gib:.2f}"
    memory = "–" if costs.peak_rss_mb is None else f"{costs.peak_rss_mb:.0f}"
    return [cpu, memory, f"{costs.gets:.0f}", f"{costs.bytes / 1e6:,.0f}"]


def _cell(results: Results, case: str, metric: str, peer: str) -> str:
    value = results.median(case, metric, peer)
    if value is not None:
        return number(value)
    why = results.failures.get((case, peer))
    return "" if why is None else "too slow" if "not done within" in why else "failed"


def number(value: float) -> str:
    """The number with about three digits."""
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _verdict(verdict: Verdict) -> Text:
    if verdict.met is None:
        return Text(verdict.text, style="dim")
    return Text(f"{verdict.text} {'met' if verdict.met else 'missed'}", style="green" if verdict.met else "bold red")
