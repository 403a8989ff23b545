"""`flowstone log`: look into log files, verify and repair them."""
