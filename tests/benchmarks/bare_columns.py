"""What the library under our columns can do: W4 over a table in memory (also for W4-csv), no engine, all cores.

``python -m tests.benchmarks.bare_columns DATASET CORES`` prints seconds and CPU seconds of the median run, rows and checksum.
"""

from __future__ import annotations

import json
import sys
import time

import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.data import PARTS, WINDOW_MS, DataSet

REPEATS = 5


def sum_and_count(table: pa.Table) -> pa.Table:
    """Sum and count of ``v`` by ``k`` and window."""
    window = pc.multiply(pc.divide(table["ts"], WINDOW_MS), WINDOW_MS)
    keyed = pa.table({"k": table["k"], "w": window, "v": table["v"]}).group_by(["k", "w"])
    return keyed.aggregate([("v", "sum"), ("v", "count")])


def main() -> None:
    data = DataSet.parse(sys.argv[1])
    pa.set_cpu_count(int(sys.argv[2]))
    table = pa.concat_tables([data.table(index) for index in range(PARTS)]).combine_chunks()
    took = []
    for _ in range(REPEATS):
        start, cpu = time.perf_counter(), time.process_time()
        result = sum_and_count(table)
        took.append((time.perf_counter() - start, time.process_time() - cpu))
    seconds, cpu_s = sorted(took)[REPEATS // 2]
    checksum = pc.sum(result["v_sum"]).as_py() + pc.sum(result["v_count"]).as_py()
    print(json.dumps([seconds, cpu_s, result.num_rows, checksum]))


if __name__ == "__main__":
    main()
