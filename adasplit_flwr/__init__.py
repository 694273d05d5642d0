"""AdaSplit on Flower: split training that adapts to the clients' compute and bandwidth.

The parts that run on the client and in the server's trainer will live in this package. Version
0.1.0 ships ZeroFL only; see :mod:`zerofl_flwr`.
"""
