"""Benchmarks: `overhead` and `server_speed` compare ours with plain parts; others measure ours."""
