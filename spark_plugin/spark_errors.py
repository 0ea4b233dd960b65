"""Texts of Spark's exceptions, made short."""

from __future__ import annotations

import re


def fold_spark_error(text: str) -> str:
    """The readable part of a Spark exception's text: Python's traceback, else the first cause.

    >>> fold_spark_error("An error occurred.\\n: org.apache.spark.SparkException: Job 3 cancelled \\n\\tat org.x")
    'Job 3 cancelled'
    """
    tracebacks = re.findall(
        r"Traceback \(most recent call last\):\n.*?(?=\n\s*\n|\n\tat |\Z)", text, re.DOTALL
    )
    if tracebacks:
        return tracebacks[-1].strip()
    causes = re.findall(r"^(?:: |Caused by: )?[\w.$]+(?:Exception|Error): (.*)", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line.strip()]
    return (causes[0] if causes else lines[0] if lines else "no reason was given").strip()
