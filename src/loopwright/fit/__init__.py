"""Fit: one call of `fit`, begun, resumed, skipped or rolled back.

Puts the rooms below together; only the trainer calls it. Never runs a step or writes a file by
itself.

Open files: attempt, event_stream, exporting, leg, leg_loop, measured_child, memory_leg, moment,
options, parts, request, restore, resume, run_spec, saved_leg.
"""
