"""The command line: `flowstone up` and the other commands, one module per command group.

Commands parse arguments and print results; other packages do the work. A module imports at the top only what all its
commands need, and the rest inside the command: `flowstone up` must start fast.
"""
