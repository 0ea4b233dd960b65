"""The given traces of Flink's window operator, whole and cut by a snapshot and a restore after every step."""

import pytest

from tests.unit.operators.windowing.traces import CASES, TraceRun

BACKENDS = ("hashmap", "rocksdb")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"].rpartition(".")[2])
def test_a_trace_gives_what_flink_gives(case, backend):
    TraceRun(case, backend).run()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"].rpartition(".")[2])
def test_a_trace_that_is_cut_after_every_step_gives_the_same(case, backend):
    """Each second restore has another parallelism."""
    cuts = 0

    def cut(run):
        nonlocal cuts
        cuts += 1
        run.cut(parallelism=1 + cuts % 2)

    TraceRun(case, backend, fused=False).run(cut)
    assert cuts == len(case["steps"])
