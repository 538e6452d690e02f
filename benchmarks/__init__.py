"""Benchmarks of speed, growth, memory, start-up and tuning: `make bench`."""
