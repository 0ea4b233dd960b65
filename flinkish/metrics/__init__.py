"""Figures that functions report; PyFlink's ``pyflink.metrics``."""

from flinkish.metrics.metricbase import Counter, Distribution, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]
