"""Benchmarks: each runs ours and the alternative in one process and prints the ratio."""
