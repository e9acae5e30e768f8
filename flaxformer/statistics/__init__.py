"""Intervals, tests, corrections and fits of scaling laws, with NumPy and SciPy alone."""
