"""Fit: one call of `fit`, begun, resumed, skipped or rolled back.

Puts the rooms below together; only the trainer calls it. Never runs a step by itself, and imports
no client but where a method calls it.

Open files: event_stream, history, measured_child, memory_run, options, parts, request, restore,
resume, run_spec, session, snapshots, step_cost.
"""
