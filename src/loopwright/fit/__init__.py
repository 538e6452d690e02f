"""One call of `fit`: begun, resumed, skipped, rolled back; a moment taken and put back.

Puts the rooms below together, and is called by the trainer alone.
"""
