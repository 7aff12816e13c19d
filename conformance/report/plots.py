"""Pictures of times: the roofline of a chip, and times against published ones. PNG and SVG.

A predicted time is drawn hollow, a measured one filled, a published one as a cross: what was never
measured does not look like it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance import chips
from conformance.case import Case
from conformance.roofline import NoPeak, Roofline, roofline
from conformance.schedule import LABEL as PREDICTED

_FORMATS = ("png", "svg")
_SIZE = (10.0, 6.5)  # inches
_DECADES = 1.5  # of intensity, shown on either side of the ridge
PUBLISHED = "published"
# The published times that are bound by arithmetic agree with the model to this.
_BAND = 0.06


@dataclass(frozen=True, kw_only=True)
class Point:
    """A time under a roof.

    Attributes:
      case, kernel: whose it is.
      limits: of the work.
      dtype: of the operands; each has a roof of its own.
      seconds: the time.
      label: "predicted", "measured" or "published".
    """

    case: str
    kernel: str
    limits: Roofline
    dtype: str
    seconds: float
    label: str

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.limits.operations / self.seconds


def points(rows: Iterable[Mapping[str, Any]], cases: Mapping[str, Case], chip: str) -> list[Point]:
    """What can be drawn of rows of benchmarks.jsonl: each time, and the published one beside it.

    A row without a time, and work that has no operations or no known peak, have no place under a
    roof.
    """
    found = []
    for row in rows:
        limits = _limits(row, cases, chip)
        if row["chip"] != chip or limits is None:
            continue
        for seconds, label in (
            (row["median_seconds"], row["label"]),
            (row["target_seconds"], PUBLISHED),
        ):
            if seconds is not None:
                found.append(
                    Point(
                        case=row["case"],
                        kernel=row["kernel"],
                        limits=limits,
                        dtype=row["params"]["dtype"],
                        seconds=seconds,
                        label=label,
                    )
                )
    return found


def _limits(row: Mapping[str, Any], cases: Mapping[str, Case], chip: str) -> Roofline | None:
    work = cases[row["case"]].work(row["params"])
    try:
        found = roofline(work, chips.get(chip), row["params"]["dtype"])
    except NoPeak:
        return None
    return found if found.operations else None


# --------------------------------------------------------------------------- drawing


def write_all(
    rows: Sequence[Mapping[str, Any]], cases: Mapping[str, Case], directory: Path
) -> list[Path]:
    """Draws what the rows have; returns the files written."""
    found = []
    for chip in sorted({r["chip"] for r in rows}):
        drawn = points(rows, cases, chip)
        if drawn:
            found += _save(_roofline_figure(drawn, chip), directory / f"roofline-{chip}")
    compared = [r for r in rows if r["target_seconds"] is not None and r["median_seconds"]]
    if compared:
        found += _save(_published_figure(compared), directory / "against-published")
    return found


def _roofline_figure(drawn: Sequence[Point], chip: str) -> Any:
    axes = _axes("operations / byte of least traffic", "operations / s", f"Roofline of {chip}")
    _roofs(axes, drawn)
    colors = _colors(p.case for p in drawn)
    for point in drawn:
        axes.plot(
            point.limits.intensity,
            point.rate,
            linestyle="none",
            color=colors[point.case],
            **_marker(point.label),
        )
    _legends(axes, colors, {p.label for p in drawn})
    return axes.figure


def _roofs(axes: Any, drawn: Sequence[Point]) -> None:
    """One roof for each peak: rising with bandwidth, flat at the peak."""
    intensities = [p.limits.intensity for p in drawn]
    ridges = [p.limits.ridge for p in drawn]
    low = min(*intensities, min(ridges) / 10**_DECADES) / 2
    high = max(*intensities, max(ridges) * 10**_DECADES) * 2
    by_peak: dict[float, set[str]] = {}
    for point in drawn:
        by_peak.setdefault(point.limits.peak, set()).add(point.dtype)
    for peak, dtypes in sorted(by_peak.items()):
        bandwidth = drawn[0].limits.bandwidth
        ridge = peak / bandwidth
        axes.plot([low, ridge, high], [low * bandwidth, peak, peak], color="0.3", linewidth=1.2)
        text = f"{', '.join(sorted(dtypes))}: {peak:.4g} / s"
        axes.annotate(text, (high, peak), ha="right", va="bottom", fontsize=8, color="0.3")
    axes.annotate(
        f"{drawn[0].limits.bandwidth:.4g} B/s",
        (low, low * drawn[0].limits.bandwidth),
        xytext=(4, 10),
        textcoords="offset points",
        fontsize=8,
        color="0.3",
    )


def _published_figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Each time against the published one, on the diagonal where they agree."""
    label = ", ".join(sorted({r["label"] for r in rows}))
    axes = _axes("published, ms, less dispatch", f"{label}, ms", "Times against published ones")
    colors = _colors(r["case"] for r in rows)
    times = [1e3 * r[name] for r in rows for name in ("target_seconds", "median_seconds")]
    ends = [10 ** math.floor(math.log10(min(times))), 10 ** math.ceil(math.log10(max(times)))]
    axes.plot(ends, ends, color="0.3", linewidth=1)
    low, high = ([e * (1 + sign * _BAND) for e in ends] for sign in (-1, 1))
    axes.fill_between(ends, low, high, color="0.85", label=f"within {100 * _BAND:g} %")
    for row in rows:
        axes.plot(
            1e3 * row["target_seconds"],
            1e3 * row["median_seconds"],
            linestyle="none",
            color=colors[row["case"]],
            **_marker(row["label"]),
        )
    _legends(axes, colors, {r["label"] for r in rows})
    return axes.figure


def _marker(label: str) -> dict[str, Any]:
    """Hollow if predicted, a cross if published, filled if measured."""
    if label == PUBLISHED:
        return {"marker": "x", "markersize": 7}
    return {
        "marker": "o",
        "markersize": 7,
        "fillstyle": "none" if label == PREDICTED else "full",
    }


def _axes(x: str, y: str, title: str) -> Any:
    # Not pyplot: it keeps figures, and looks for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y, title=title)
    axes.grid(visible=True, which="major", color="0.9")
    return axes


def _colors(cases: Iterable[str]) -> dict[str, Any]:
    from matplotlib import colormaps

    names = sorted(set(cases))
    return {name: colormaps["tab20"](number % 20) for number, name in enumerate(names)}


def _legends(axes: Any, colors: Mapping[str, Any], labels: Iterable[str]) -> None:
    """One entry for each case, by color, and one for each kind of time, by marker."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="none", marker="s", color=color, label=case)
        for case, color in colors.items()
    ]
    handles += [
        Line2D([], [], linestyle="none", color="black", label=label, **_marker(label))
        for label in sorted(labels)
    ]
    axes.legend(handles=handles, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _save(figure: Any, stem: Path) -> list[Path]:
    """Writes both formats, without dates and random names, so that equal rows make equal files."""
    import matplotlib

    found = []
    with matplotlib.rc_context({"svg.hashsalt": stem.name}):
        for kind in _FORMATS:
            path = stem.with_name(f"{stem.name}.{kind}")
            figure.savefig(path, dpi=120, metadata={"Date": None} if kind == "svg" else {})
            found.append(path)
    return found
