"""The peers of the benchmarks, in virtual environments of their own: `make bench-peers`."""
