"""A fast source waits for a slow one, on real slots; who holds event time back can be asked."""

from dataclasses import replace

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.discarding import DiscardingSink
from flinkish.connectors.spi import InputStatus, SourceReader
from flinkish.connectors.split_assignment import PinnedSplitSource, RangeSplit
from flinkish.errors import InvalidJobError
from flinkish.rest.client import RestClient
from flinkish.rest.registration import DriverAddress
from tests.integration.waiting import wait_until

DRIFT = 1_000
PER_POLL = 10
#: What is read between two periodic watermarks.
OVERSHOOT = 40 * PER_POLL


class Numbers(PinnedSplitSource):
    """Event times 0, 1, 2, ..., as far as a file says; notes in another how far it has got."""

    def __init__(self, folder, name):
        self.goal, self.place = folder / f"{name}.goal", folder / f"{name}.at"

    def splits(self, parallelism):
        return [RangeSplit(0, 1_000_000, 0)]

    def create_reader(self, context):
        return NumbersReader(self, context)


class NumbersReader(SourceReader):
    poll_interval_ms = 1

    def __init__(self, source, context):
        self.source, self.context = source, context
        self.split, self.no_more = None, False

    def start(self):
        if self.split is None:
            self.context.send_split_request()

    def add_splits(self, splits):
        (self.split,) = splits

    def notify_no_more_splits(self):
        self.no_more = True

    def snapshot_state(self, checkpoint_id):
        return [] if self.split is None else [self.split]

    def poll_next(self, output):
        goal = int(self.source.goal.read_text())
        if self.split is None:
            return InputStatus.END_OF_INPUT if goal < 0 and self.no_more else InputStatus.NOTHING_AVAILABLE
        if goal < 0:
            output.release_output_for_split(self.split.split_id())
            self.split = None
            return InputStatus.END_OF_INPUT
        at = self.split.position
        times = list(range(at, min(at + PER_POLL, goal)))
        if times:
            output.create_output_for_split(self.split.split_id()).collect_batch(list(times), times)
            self.split = replace(self.split, position=times[-1] + 1)
            write(self.source.place, times[-1])
        return InputStatus.NOTHING_AVAILABLE


def write(path, number):
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(str(number))
    beside.rename(path)


def test_a_fast_source_is_kept_near_a_slow_one_through_checkpoints_and_rescaling(cluster, tmp_path):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment("all", DRIFT, "100 ms")
    settings = {"pipeline.auto-watermark-interval": "10 ms", "execution.checkpointing.interval": "1 h"}
    env = cluster.get_execution_environment(settings)
    env.set_parallelism(1)
    fast, slow = Numbers(tmp_path, "fast"), Numbers(tmp_path, "slow")
    write(fast.goal, 0), write(slow.goal, 100)
    streams = [
        env.from_source(source, strategy, name).uid(name) for source, name in ((fast, "fast"), (slow, "slow"))
    ]
    streams[0].union(streams[1]).rebalance().map(str).name("both").sink_to(DiscardingSink())
    client = env.execute_async("aligned")

    def place(source):
        return int(source.place.read_text()) if source.place.exists() else -1

    def drifts():
        return [figures.get("watermarkAlignmentDrift", 0) for figures in client.get_metrics().values()]

    def explanation():
        return client.explain_watermarks().data

    def fast_waits_behind(least, slow_at):
        """Until the fast one has got beyond ``least`` and is paused; then it has not got far ahead."""
        name = f"Source: fast (1/{width})"
        wait_until(lambda: place(fast) > least and name in explanation()["paused"], "the fast source waits")
        assert place(fast) <= slow_at + DRIFT + OVERSHOOT

    width = 1
    # It is told how far it may get before it begins to run.
    write(fast.goal, 1)
    wait_until(lambda: place(slow) == 99 and -DRIFT in drifts(), "the fast source has a limit")
    write(fast.goal, 1_000_000)
    fast_waits_behind(DRIFT, 100)
    write(slow.goal, 3_000)
    fast_waits_behind(2_500 + DRIFT, 3_000)

    wait_until(lambda: explanation()["watermark"] == 2_998, "all have reported")
    found = client.explain_watermarks("both")
    (holder,) = found.held_by
    assert (holder["kind"], holder["task"], holder["split"]) == ("SPLIT", "Source: slow (1/1)", "0-1000000")
    assert found.watermark == 2_998 and 'held back by split "0-1000000" of Source: slow (1/1)' in str(found)
    assert any(0 < drift <= OVERSHOOT for drift in drifts()), drifts()

    client.trigger_checkpoint().result("60 s")  # the paused source takes barriers
    client.rescale(2).result("60 s")
    width = 2  # with a second reader of each, which has no split, is idle and holds nobody up
    write(slow.goal, 6_000)
    fast_waits_behind(5_500 + DRIFT, 6_000)

    wait_until(lambda: explanation()["watermark"] == 5_998, "all have reported")
    rest = RestClient(DriverAddress(*cluster.job_manager.rest.address, "", 0))
    last = explanation()["vertices"][-1]["id"]
    watermarks = rest.request("GET", f"/jobs/{client.job_id}/vertices/{last}/watermarks")
    assert watermarks == [{"id": f"{n}.currentInputWatermark", "value": "5998"} for n in range(2)]
    answer = rest.request("GET", f"/jobs/{client.job_id}/watermarks", {"operator": "both"})
    assert answer["watermark"] == 5_998 and answer["held-by"][0]["task"] == "Source: slow (1/2)"

    write(slow.goal, -1)  # its end holds nobody up
    wait_until(lambda: place(fast) > 12_000, "the fast source goes on alone")
    write(fast.goal, -1)
    client.wait("60 s")
    assert client.status is JobStatus.FINISHED
    with pytest.raises(InvalidJobError, match="could not explain(.|\n)*FINISHED"):
        client.explain_watermarks()
