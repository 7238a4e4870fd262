"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from astromesh.telemetry.metrics import COUNTERS, HISTOGRAMS, Metrics

_PREFIX = "astromesh_"


def exposition(metrics: Metrics) -> bytes:
    """Returns all metrics in the text exposition format of Prometheus."""
    registry = CollectorRegistry()  # a registry per call keeps two runtimes apart
    registry.register(_Families(metrics))
    return generate_latest(registry)


class _Families(Collector):
    """Metric families of the current values."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Returns nothing; otherwise the registry would collect everything once more to learn the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        readings, tally = self._metrics.read()
        for reading, numbers in readings:
            kind = CounterMetricFamily if reading.is_counter else GaugeMetricFamily
            read = kind(_PREFIX + reading.name, reading.description, labels=reading.labels)
            for key, value in numbers.items():
                read.add_metric(key, value)
            yield read
        for name, (about, labels) in COUNTERS.items():
            counter = CounterMetricFamily(_PREFIX + name, about, labels=labels)
            for key, count in tally.counter(name).items():
                counter.add_metric(key, count)
            yield counter
        for name, (about, labels) in HISTOGRAMS.items():
            family = HistogramMetricFamily(_PREFIX + name, about, labels=labels)
            for key, durations in tally.histogram(name).items():
                family.add_metric(key, durations.buckets(), durations.total)
            yield family
