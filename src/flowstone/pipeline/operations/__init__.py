"""The operations of the commands of `flowstone pipeline`, one module for each."""
