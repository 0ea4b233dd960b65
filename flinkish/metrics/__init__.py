"""Figures that functions report; PyFlink's ``pyflink.metrics``."""

from flinkish.metrics.metricbase import (
    Counter,
    Distribution,
    Histogram,
    HistogramStatistics,
    Meter,
    Metric,
    MetricGroup,
)

__all__ = ["Counter", "Distribution", "Histogram", "HistogramStatistics", "Meter", "Metric", "MetricGroup"]
