"""Parts of a step rewritten to run faster under XLA, with Keras' numbers to rounding.

A plan names its rewrites, because they change bits: a run that is resumed follows its record.
Never: changes Keras for longer than a trace, or where it is not known to be the same computation.

Open files: scope.
"""
