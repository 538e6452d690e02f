"""Guards: mistakes that a trace, the data or the numbers of a run show.

They warn or refuse, and change nothing.
"""
