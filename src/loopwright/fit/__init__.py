"""Fit: one call of `fit`, begun, resumed, skipped or rolled back.

Puts the rooms below together; only the trainer calls it. Never runs a step by itself, and imports
no client but where a method calls it.

Open files: attempt, declaration, event_stream, history, leg, leg_loop, measured_child, memory_leg,
moment, options, parts, request, restore, resume, saved_leg.
"""
