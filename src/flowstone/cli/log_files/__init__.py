"""`flowstone log`: inspect, verify and repair log files."""
