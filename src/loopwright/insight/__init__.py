"""Insight: find out what a training does, before it runs and after it ended.

Rehearses, replays, compares, profiles and searches by running legs of `fit` in memory. Whatever
it trains is undone: the task, its seeds and the files of a run are as before. Never saves a
checkpoint of a run, and never calls a user's callback unless asked to.

Open files: comparison, first_difference, history_state, learning_rates, profile, rehearsal,
rehearsal_report, replay, replayed.
"""
