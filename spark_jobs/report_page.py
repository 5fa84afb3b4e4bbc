"""The report as one HTML page that needs nothing else: plots are SVG in it, by matplotlib.

page(report) -> str
"""

from __future__ import annotations

import html
import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from quire.tools.output import readable_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_jobs.report_tables import Row

#: Bars of a plot: the largest; all rows are in the tables.
BARS_MAX = 20
#: So that one bar does not fill a plot.
PLACES_MIN = 4
DAYS_NAMED = 12
ROWS_MAX = 1000
#: The end of the year 9998.
TIME_MAX_MS = 253_370_764_800_000
_TITLES = {
    "topics": "Topics",
    "times": "Times of records in closed ledgers",
    "bookies": "Bookies",
    "growth": "Growth: what is there now, by the day its ledger was made",
    "small_ledgers": "Partitions with small ledgers",
    "lag": "Groups: what they have not committed yet",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em;
       color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .2em .8em; text-align: right }
th { border-bottom: 2px solid #888 } td { border-bottom: 1px solid #ddd;
     white-space: nowrap }
th:first-child, td:first-child { text-align: left } svg { max-width: 100%; height: auto }
.problem { color: #a00 }
"""


def page(report: Mapping[str, Any]) -> str:
    """ClickException without matplotlib."""
    made = _time(report["made_ms"])
    parts = [f"<h1>What the cluster holds</h1><p>Made {made}.</p>"]
    parts += [f'<p class="problem">{html.escape(words)}</p>' for words in report["problems"]]
    for name, title in _TITLES.items():
        rows = report[name]
        parts.append(f"<h2>{title}</h2>")
        if not rows:
            parts.append("<p>Nothing.</p>")
            continue
        if (draw := _PLOTS.get(name)) is not None:
            parts.append(_svg(draw, rows, title))
        parts.append(_table(rows))
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>quire report, {made}</title><style>{_STYLE}</style></head>\n"
        f"<body>{body}</body></html>\n"
    )


def _table(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    head = "".join(f"<th>{html.escape(_heading(name))}</th>" for name in names)
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(_cell(name, row[name]))}</td>" for name in names)
        + "</tr>"
        for row in rows[:ROWS_MAX]
    ]  # fmt: skip
    more = f"<p>And {len(rows) - ROWS_MAX} more.</p>" if len(rows) > ROWS_MAX else ""
    return f"<table><tr>{head}</tr>\n" + "\n".join(lines) + f"</table>{more}"


def _heading(name: str) -> str:
    return name.removesuffix("_bytes").removesuffix("_ms").replace("_", " ")


def _cell(name: str, value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_bytes"):
        return readable_size(value)
    if isinstance(value, int) and name in ("day_ms", "min_ts_ms", "max_ts_ms"):
        return _time(value)
    if isinstance(value, int) and name.endswith("_ms"):
        return f"{value / 1000:,.1f} s"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):  # a producer's clock may say anything
        return f"{time_ms} ms"


def _svg(draw: Callable[[Any, Sequence[Row]], None], rows: Sequence[Row], title: str) -> str:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException(
            f"--html needs matplotlib, which is in the extra `spark`: {error}"
        ) from None
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure = Figure(figsize=(9, 0.6 + 0.3 * max(min(len(rows), BARS_MAX), 6)))
        draw(figure.subplots(), rows)
        figure.tight_layout()
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _bars(label: str, value: str, unit: str, scale: float) -> Callable[[Any, Sequence[Row]], None]:
    def draw(axes: Any, rows: Sequence[Row]) -> None:  # noqa: ANN401  # untyped
        shown = sorted(rows, key=lambda row: row[value] or 0)[-BARS_MAX:]
        # A name is data: matplotlib takes what is between dollars for mathematics.
        names = [str(row[label]).replace("$", r"\$") for row in shown]
        axes.barh(range(len(shown)), [(row[value] or 0) / scale for row in shown], color="#3572a5")
        axes.set_yticks(range(len(shown)), names)
        axes.set_ylim(min(len(shown) - PLACES_MIN, 0) - 0.6, len(shown) - 0.4)
        axes.set_xlabel(unit)

    return draw


def _is_drawn(time_ms: int) -> bool:
    """Whether a calendar has it: a broker's clock may have been anywhere. The tables show it."""
    return 0 <= time_ms <= TIME_MAX_MS


def _growth(axes: Any, rows: Sequence[Row]) -> None:  # noqa: ANN401  # untyped
    rows = [row for row in rows if _is_drawn(row["day_ms"])]
    places = range(len(rows))
    sizes = [row["size_bytes"] / 2**20 for row in rows]
    axes.bar(places, sizes, width=0.6, color="#3572a5", label="of the day")
    total = [row["since_first_bytes"] / 2**20 for row in rows]
    axes.plot(places, total, color="#c44", marker="o", label="until then")
    axes.set_ylabel("MiB")
    # Days without a ledger are not there; of many, some are named.
    named = places[:: max(len(rows) // DAYS_NAMED, 1)]
    days = [datetime.fromtimestamp(rows[n]["day_ms"] / 1000, UTC) for n in named]
    axes.set_xticks(list(named), [f"{day:%Y-%m-%d}" for day in days])
    axes.set_xlim(-1, max(len(rows), PLACES_MIN))
    axes.tick_params(axis="x", rotation=30)
    axes.legend()


_PLOTS: dict[str, Callable[[Any, Sequence[Row]], None]] = {
    "topics": _bars("topic", "size_bytes", "MiB of records", 2**20),
    "bookies": _bars("bookie", "size_bytes", "MiB of copies", 2**20),
    "growth": _growth,
    "small_ledgers": _bars("partition", "small_ledgers", "small ledgers", 1),
    "lag": _bars("partition", "behind", "records not committed, by partition and group", 1),
}
