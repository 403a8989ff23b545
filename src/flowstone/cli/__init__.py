"""The command line: `flowstone up` and the tools beside it, one module per command group.

Commands read what people type and print what people read; everything else they call. A module here imports only what
every one of its commands needs, and the rest inside the command: `flowstone up` must start fast.
"""
