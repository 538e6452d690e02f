"""Measure speed, scaling, memory, start-up and tuning on this machine: `make bench`."""
