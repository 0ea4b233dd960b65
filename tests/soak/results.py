"""What the job has published, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Iterable, Mapping

from tests.soak.job import SPLITS, key_of


class Results:
    """Of the sink's folder.  A published file never changes, so each is read once."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._read: set[str] = set()
        self.numbers: Counter[int] = Counter()
        self.counts: Counter[tuple[int, int]] = Counter()  # (key, count)

    def read_new(self) -> int:
        """Read what has been published since the last call; returns how many lines there are in all."""
        for file in self._folder.glob("part-*"):
            if file.name not in self._read:
                self._read.add(file.name)
                self.add(tuple(map(int, line.split())) for line in file.read_text().splitlines())
        return self.numbers.total()

    def add(self, lines: Iterable[tuple[int, ...]]) -> None:
        """(key, count, number) each."""
        for key, count, number in lines:
            self.numbers[number] += 1
            self.counts[key, count] += 1

    def duplicated(self) -> list[int]:
        """Numbers that are there more than once."""
        return sorted(number for number, times in self.numbers.items() if times > 1)

    def lost(self, per_split: int) -> list[int]:
        """Numbers that are not there, of so many that were read of each split."""
        return [number for number in range(per_split * SPLITS) if number not in self.numbers]

    def wrong_counts(self, per_split: int) -> Mapping[tuple[int, int], int]:
        """(key, count) -> how much oftener it is there than it should be; negative: it is missing."""
        expected: Counter[tuple[int, int]] = Counter()
        of_key: Counter[int] = Counter()
        for number in range(per_split * SPLITS):
            key = key_of(number)
            of_key[key] += 1
            expected[key, of_key[key]] = 1
        wrong = Counter(self.counts)
        wrong.subtract(expected)
        return {place: by for place, by in sorted(wrong.items()) if by}
