"""Simulations of lean-flwr's methods: data, models, command line, results."""
