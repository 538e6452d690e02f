"""Sinks: what hears the events of a run."""
