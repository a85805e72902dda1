"""Measurements: ratios within one run, printed for people. Nothing here passes or fails on time."""
