"""The command line: commands, jobs, the kill test. TensorFlow is imported by what trains.

`loopwright --help`, `runs`, `report` and `launch` work without it.
"""
