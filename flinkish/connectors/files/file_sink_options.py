"""PyFlink's options of a file sink: names of part files, when to begin another, where they go."""

from __future__ import annotations

from flinkish.common.arguments import check_argument
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.errors import InvalidJobError

__all__ = [
    "BucketAssigner",
    "DefaultRollingPolicy",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RollingPolicy",
]


class OutputFileConfig:
    """How the names of part files begin and end."""

    def __init__(self, part_prefix: str = "part", part_suffix: str = ""):
        for what, text in (("prefix", part_prefix), ("suffix", part_suffix)):
            check_argument(text, str, "OutputFileConfig()", f"part_{what}")
            if "/" in text or "\0" in text:
                raise InvalidJobError(f"a part {what} cannot be {text!r}", why="it is no part of a name")
        if not part_prefix or part_prefix[0] in "._":
            raise InvalidJobError(
                f"a part prefix cannot be {part_prefix!r}",
                why='it is empty, or begins with "." or "_", which marks hidden files',
            )
        self.part_prefix, self.part_suffix = part_prefix, part_suffix

    @staticmethod
    def builder() -> "OutputFileConfig.OutputFileConfigBuilder":
        return OutputFileConfig.OutputFileConfigBuilder()

    def get_part_prefix(self) -> str:
        return self.part_prefix

    def get_part_suffix(self) -> str:
        return self.part_suffix

    class OutputFileConfigBuilder:
        def __init__(self) -> None:
            self.part_prefix, self.part_suffix = "part", ""

        def with_part_prefix(self, prefix: str) -> "OutputFileConfig.OutputFileConfigBuilder":
            self.part_prefix = prefix
            return self

        def with_part_suffix(self, suffix: str) -> "OutputFileConfig.OutputFileConfigBuilder":
            self.part_suffix = suffix
            return self

        def build(self) -> "OutputFileConfig":
            return OutputFileConfig(self.part_prefix, self.part_suffix)


class RollingPolicy:
    """When a writer completes its file and begins another; it also does at each checkpoint."""

    @staticmethod
    def default_rolling_policy(
        part_size: int = 128 * 1024 * 1024,
        rollover_interval: TimeLike = 60_000,
        inactivity_interval: TimeLike = 60_000,
    ) -> "DefaultRollingPolicy":
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)

    @staticmethod
    def on_checkpoint_rolling_policy() -> "OnCheckpointRollingPolicy":
        return OnCheckpointRollingPolicy()


class DefaultRollingPolicy(RollingPolicy):
    """A new file when one has ``part_size`` bytes.

    The intervals are kept, but cut no files: files are published with a checkpoint, or when the job has
    succeeded."""

    def __init__(self, part_size: int, rollover_interval: TimeLike, inactivity_interval: TimeLike):
        if check_argument(part_size, int, "default_rolling_policy()", "part_size") <= 0:
            raise InvalidJobError(f"the size of a part file must be above 0 bytes, not {part_size}")
        self.part_size_bytes = part_size
        self.rollover_interval_ms = to_milliseconds(rollover_interval)
        self.inactivity_interval_ms = to_milliseconds(inactivity_interval)


class OnCheckpointRollingPolicy(RollingPolicy):
    """One file for each writer and checkpoint."""


class BucketAssigner:
    """Which folder below the base path a record goes to."""

    @staticmethod
    def base_path_bucket_assigner() -> "BucketAssigner":
        """All files directly in the base path.  The default here; Flink's is a folder for each hour."""
        return BucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(
        format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None
    ) -> "BucketAssigner":
        raise InvalidJobError(
            "could not put the files into folders by date",
            why="this version writes all files directly into the base path",
            do="leave with_bucket_assigner() out, or give BucketAssigner.base_path_bucket_assigner()",
        )
