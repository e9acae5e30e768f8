"""Benchmarks: several ways to do the same work, each measured in its own process and compared round by round.

A benchmark is one typed file that ends in `benchmark = Benchmark(...)`, or in `benchmark = Suite(...)` for several
within a time; `flaxformer bench NAME` runs it. The classes and functions exported here import the standard library
only, so they add nothing to the start time and memory of a way:

>>> def numpy_sum(work):
...     import numpy
...     numbers = numpy.ones(work["size"])
...     return rate(work, lambda: numbers.sum(), units=work["size"], name="numbers_per_second")
>>> benchmark = Benchmark(
...     question="How fast is a sum?",
...     ways=[Way("numpy", numpy_sum), Way("torch", torch_sum, needs=["torch"], get="pip install torch")],
...     options={"size": (1_000, 1_000_000)},
...     compared="numbers_per_second",
...     reference="torch",
... )
"""

from flaxformer.bench.clock import first_step, rate
from flaxformer.bench.declare import Benchmark, Limit, Unavailable, Way, Work
from flaxformer.bench.suite import BenchmarkGoal, Section, Suite

__all__ = [
    "Benchmark",
    "BenchmarkGoal",
    "Limit",
    "Section",
    "Suite",
    "Unavailable",
    "Way",
    "Work",
    "first_step",
    "rate",
]
