"""What the commands of `flowstone pipeline` do, one module for each."""
