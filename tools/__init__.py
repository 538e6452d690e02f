"""Tools for those who change Loopwright: they measure its source, and ship with nothing."""
