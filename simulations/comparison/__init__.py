"""Comparisons of methods: grids and sweeps of runs, and the report that is made of them."""
