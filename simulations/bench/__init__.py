"""Benchmarks: `overhead` compares ours with plain Flower; the others measure ours alone."""
