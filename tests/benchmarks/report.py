"""From runs to one row a workload and system, and rows to a table."""

from __future__ import annotations

import statistics
from typing import Any, Optional, Sequence

from tests.benchmarks.systems import Throughput

Row = dict[str, Any]
SHORTEST_S = 0.2  # a smaller difference between two sizes is mostly noise


def median(values: Sequence[Optional[float]], digits: Optional[int] = None) -> Optional[float]:
    """Of what was measured; None when nothing was."""
    known = [value for value in values if value is not None]
    return round(statistics.median(known), digits) if known else None


def spread(values: Sequence[Optional[float]], digits: Optional[int] = None) -> Optional[list]:
    known = [value for value in values if value is not None]
    return [round(min(known), digits), round(max(known), digits)] if known else None


def throughput_row(
    workload: str,
    system: str,
    runs: Sequence[Throughput],
    bare: Sequence[Throughput],
    foreign_cores: Sequence[float],
) -> Row:
    """Medians and [least, most] of runs, each beside the bare run of its round."""

    def ratios(name: str) -> list[Optional[float]]:
        pairs = [(getattr(run, name), getattr(floor, name)) for run, floor in zip(runs, bare)]
        return [mine / floor if mine and floor else None for mine, floor in pairs]

    row: Row = {"workload": workload, "system": system}
    for name in ("records_per_s", "records_per_cpu_s"):
        for prefix, of in ("", runs), ("bare_", bare):
            values = [getattr(run, name) for run in of]
            row[prefix + name] = median(values)
            row[f"{prefix}{name}_spread"] = spread(values)
    for name, rate in ("ratio", "records_per_s"), ("cpu_ratio", "records_per_cpu_s"):
        row[name] = median(ratios(rate), 4)
        row[f"{name}_spread"] = spread(ratios(rate), 4)
    return {
        **row,
        "rows": runs[-1].rows,
        "checksum": runs[-1].checksum,
        "checksum_ok": all(run.checksum_ok for run in runs),
        "extra_s": median([run.extra_s for run in runs], 3),
        "extra_cpu_s": median([run.extra_cpu_s for run in runs], 3),
        "foreign_cores": median(foreign_cores, 2),
        "runs": len(runs),
    }


def latency_row(
    workload: str,
    system: str,
    runs: Sequence[Row],
    echo: Sequence[Row],
    foreign_cores: Sequence[float],
) -> Row:
    """Medians and [least, most], ms; ``echo_…`` is the floor of the feeder itself."""
    row: Row = {"workload": workload, "system": system}
    for prefix, of in ("", runs), ("echo_", echo):
        for name in ("p50_ms", "p99_ms", "p999_ms", "max_ms"):
            values = [run[name] for run in of]
            row[prefix + name] = median(values, 3)
            row[f"{prefix}{name}_spread"] = spread(values, 3)
    return {
        **row,
        "records": runs[-1]["sent"],
        "missing": max(run["sent"] - run["received"] for run in runs),
        "checksum": runs[-1]["checksum"],
        "feeder_behind_ms_max": max(run["feeder_behind_ms_max"] for run in runs),
        "foreign_cores": median(foreign_cores, 2),
        "runs": len(runs),
    }


def remarks(row: Row) -> list[str]:
    """What a reader of the row must know."""
    found = []
    for name, what in ("extra_s", "s"), ("extra_cpu_s", "CPU seconds"):
        if row.get(name, SHORTEST_S) < SHORTEST_S:
            found.append(
                f"the larger size took {row[name]:.3f} {what} more:"
                " too short to measure, give more --records"
            )
    if row.get("missing"):
        found.append(f"{row['missing']} lines had not arrived 15 s after the last was sent")
    if not row.get("checksum_ok", True):
        found.append("rows or checksum are not what the data gives")
    return found


def _cell(value: Optional[float], form: str) -> str:
    return "-" if value is None else format(value, form)


def _span(values: Optional[Sequence[float]], form: str) -> str:
    return "-" if values is None else "..".join(format(value, form) for value in values)


def _figures(row: Row) -> str:
    found = []
    for name, value in row.items():
        if isinstance(value, (int, float)):
            spread_ = row.get(f"{name}_spread")
            found.append(f"{name} {value:,}" + ("" if spread_ is None else f" ({_span(spread_, ',')})"))
    return ", ".join(found)


def table(rows: Sequence[Row]) -> str:
    """Throughput and latency for people, with spreads."""
    lines: list[str] = []
    for row in rows:
        if "ratio" not in row:
            continue
        if not lines:
            lines.append(
                f"{'workload':14}{'system':10}{'records/s':>12}{'bare':>12}{'ratio':>8}"
                f"{'spread':>16}{'a CPU second':>14}{'bare':>12}{'ratio':>8}{'spread':>16}"
            )
        lines.append(
            f"{row['workload']:14}{row['system']:10}{_cell(row['records_per_s'], ',.0f'):>12}"
            f"{_cell(row['bare_records_per_s'], ',.0f'):>12}{_cell(row['ratio'], '.3f'):>8}"
            f"{_span(row['ratio_spread'], '.3f'):>16}"
            f"{_cell(row['records_per_cpu_s'], ',.0f'):>14}"
            f"{_cell(row['bare_records_per_cpu_s'], ',.0f'):>12}"
            f"{_cell(row['cpu_ratio'], '.3f'):>8}{_span(row['cpu_ratio_spread'], '.3f'):>16}"
        )
    latencies = [row for row in rows if "p50_ms" in row]
    if latencies:
        lines.append(
            f"{'workload':14}{'system':10}{'p50 ms':>8}{'spread':>16}{'echo':>8}{'above':>8}"
            f"{'p99 ms':>9}{'spread':>18}{'echo':>8}{'above':>9}"
        )
    for row in latencies:
        cells = [f"{row['workload']:14}{row['system']:10}"]
        for name, width in ("p50_ms", 0), ("p99_ms", 1):
            mine, floor = row[name], row[f"echo_{name}"]
            cells.append(
                f"{mine:{8 + width}.3f}{_span(row[f'{name}_spread'], '.3f'):>{16 + 2 * width}}"
                f"{floor:8.3f}{mine - floor:{8 + width}.3f}"
            )
        lines.append("".join(cells))
    for row in rows:
        if "seconds" in row:
            lines.append(f"{row['workload']:28}{row['seconds']:8.3f} s {_span(row['seconds_spread'], '.3f'):>16}")
        elif "ratio" not in row and "p50_ms" not in row:
            lines.append(f"{row['workload']:28}{_figures(row)}")
    for row in rows:
        lines += [f"{row['workload']} {row['system']}: {remark}" for remark in remarks(row)]
    return "\n".join(lines)
