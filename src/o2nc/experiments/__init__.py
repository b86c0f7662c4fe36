"""What the command line runs: one experiment per file, with its knobs at the top.

These modules need ``o2nc[experiments]``; nothing in the core imports them.
"""
