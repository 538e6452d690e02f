"""Guards: mistakes that the trace of a step, the arrays or the numbers of a run show.

A guard looks at one value (`guard.StepTrace`, `arrays.Examples`) and yields findings; `examine`
warns of them or raises. Guards change nothing and run nothing. A new guard is one function and
one entry in the list of its family's file.

Open files: arrays, calls, constants, guard, labels, resources, source, updates, watches.
"""
