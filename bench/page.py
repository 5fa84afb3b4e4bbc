"""The page that compares kept runs, so that a slow-down is seen: docs/bench-runs/README.md.

    python -m bench.compare --keep docs/bench-runs
    python -m bench.page [DIRECTORY]

Plots of the newest run: ratios of throughput to each peer, and latencies. A plot and a table over
all runs: the ratios of throughput, since absolute figures are of machines. A case is told as slower
or faster where no round of a run reached any round of the run before it.
"""

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from bench import rounds
from bench.compare import PERCENTILES
from bench.rounds import Table
from bench.runs import DIRECTORY, Run, load_all

THROUGHPUT = {"requests/s", "MB/s"}
INTRODUCTION = """# Runs compared

`python -m bench.page` made this page from the documents in this directory. Each is a run that
`python -m bench.compare --keep docs/bench-runs` kept. Ratios are quire's throughput divided by the
peer's in the same round: the median, and in brackets the least and the most. Above 1 quire is the
faster one. A case is called slower, or faster, where no round came to any round of the run before.
"""
COLUMNS = 3
PLAIN = StrMethodFormatter("{x:g}")
COLOURS = ["#3572a5", "#c4572e", "#4c8c4a", "#7a5ea8"]


def throughput_ratios(table: Table) -> Iterator[tuple[str, str, list[float]]]:
    """(case, peer, ours / the peer's round by round), where both have figures."""
    for (what, unit), values in table.rows.items():
        if unit not in THROUGHPUT:
            continue
        for peer in table.columns:
            if peer != table.mine and (
                found := rounds.ratios(values.get(str(table.mine)), values.get(peer))
            ):
                yield what, peer, found


def change(before: list[float], now: list[float]) -> str:
    if max(now) < min(before):
        return "slower"
    return "faster" if min(now) > max(before) else ""


def history(runs: list[Run]) -> dict[tuple[str, str], list[list[float]]]:
    """(case, peer) -> ratios of each run, empty where the run has none."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for number, run in enumerate(runs):
        for what, peer, ratios in throughput_ratios(run.table):
            found.setdefault((what, peer), [[] for _ in runs])[number] = ratios
    return found


def page(runs: list[Run]) -> str:
    """Markdown; names the plots that `draw` makes beside it."""
    newest = runs[-1]
    parts = [
        INTRODUCTION,
        f"## The newest run\n\n{newest.name}, `{newest.command}`; load average at the end"
        f" {newest.load_average}.",
        "\n".join(f"- {line}" for line in newest.machine.lines()),
        "![ratios of throughput](throughput.svg)",
        "![latencies](latency.svg)",
        newest.table.markdown(),
        "## All runs",
        "![ratios of throughput, run by run](history.svg)",
        rounds.markdown(list(_history_lines(runs))),
        "What they ran on:",
        "\n".join(f"- {run.name}: {'; '.join(run.machine.lines())}" for run in runs),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _history_lines(runs: list[Run]) -> Iterator[list[str]]:
    head = ["case", "beside", *(run.name for run in runs), "change"]
    yield head
    yield ["---"] * len(head)
    for (what, peer), found in history(runs).items():
        cells = [rounds.ratio_cell(ratios) for ratios in found]
        known = [ratios for ratios in found if ratios]
        told = change(*known[-2:]) if len(known) > 1 and found[-1] else ""
        yield [what, peer, *cells, told]


def draw(runs: list[Run], directory: Path) -> None:
    """throughput.svg, latency.svg and history.svg; the same runs give the same bytes."""
    table = runs[-1].table
    for name, plot in (
        ("throughput", lambda figure: _draw_throughput(figure.subplots(), table)),
        ("latency", lambda figure: _draw_latencies(figure, table)),
        ("history", lambda figure: _draw_history(figure, runs)),
    ):
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
            figure = Figure(figsize=(10, 7), layout="constrained")
            plot(figure)
            figure.savefig(directory / f"{name}.svg", metadata={"Date": None})


def _draw_throughput(axes: Axes, table: Table) -> None:
    found = list(throughput_ratios(table))
    cases = list(dict.fromkeys(what for what, _, _ in found))
    peers = list(dict.fromkeys(peer for _, peer, _ in found))
    height = 0.8 / max(1, len(peers))
    for what, peer, ratios in found:
        at = -cases.index(what) - peers.index(peer) * height
        median = statistics.median(ratios)
        reach = [[median - min(ratios)], [max(ratios) - median]]
        colour = COLOURS[peers.index(peer) % len(COLOURS)]
        axes.barh(at, median, height, xerr=reach, color=colour, capsize=2)
    for number, peer in enumerate(peers):
        axes.barh(0, 0, color=COLOURS[number % len(COLOURS)], label=f"beside {peer}")
    axes.set_yticks([-number - 0.4 + height / 2 for number in range(len(cases))], cases)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(PLAIN)
    axes.axvline(1, color="#222", linewidth=1)
    axes.set_xlabel(f"throughput of {table.mine} / the peer's, median and all rounds")
    axes.legend()


def _draw_latencies(figure: Figure, table: Table) -> None:
    """A plot for each case, a line for each server over the percentiles."""
    suffixes = [f": {percentile}" for percentile in PERCENTILES]
    cases = [what.removesuffix(suffixes[0]) for what, _ in table.rows if what.endswith(suffixes[0])]
    rows = -(-len(cases) // COLUMNS)
    grid = figure.subplots(max(1, rows), COLUMNS, squeeze=False, sharex=True).flat
    for axes, case in zip(grid, cases, strict=False):
        for number, column in enumerate(table.columns):
            values = [table.rows.get((case + suffix, "ms"), {}).get(column) for suffix in suffixes]
            if all(values):
                medians = [statistics.median(value or [0]) for value in values]
                colour = COLOURS[number % len(COLOURS)]
                axes.plot(list(PERCENTILES), medians, color=colour, marker=".", label=column)
        axes.set_title(case, fontsize="small")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_minor_formatter(NullFormatter())
    for axes in figure.axes[len(cases) :]:
        axes.axis("off")
    figure.supylabel("ms from request to reply, medians of the rounds")
    if figure.axes:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center")


def _draw_history(figure: Figure, runs: list[Run]) -> None:
    """Below each other, one for each peer."""
    found = history(runs)
    peers = list(dict.fromkeys(peer for _, peer in found))
    cases = list(dict.fromkeys(what for what, _ in found))
    grid = figure.subplots(max(1, len(peers)), sharex=True, squeeze=False)[:, 0]
    for axes, peer in zip(grid, peers, strict=False):
        for (what, beside), lines in found.items():
            if beside == peer:
                at = [place for place, ratios in enumerate(lines) if ratios]
                medians = [statistics.median(lines[place]) for place in at]
                number = cases.index(what)
                style = ["-", "--", ":"][number // 10 % 3]
                shade = mpl.colormaps["tab10"](number % 10)
                axes.plot(at, medians, style, color=shade, marker=".", label=what)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.axhline(1, color="#222", linewidth=1)
        axes.set_ylabel(f"throughput / that of {peer}")
        axes.set_xticks(range(len(runs)), [run.name for run in runs], rotation=20)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="x-small")


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY
    try:
        runs = load_all(directory)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if not runs:
        raise SystemExit(
            f"no run is kept in {directory}: python -m bench.compare --keep {directory}"
        )
    (directory / "README.md").write_text(page(runs))
    draw(runs, directory)
    rounds.note(f"{directory}/README.md compares {len(runs)} runs")


if __name__ == "__main__":
    main()
