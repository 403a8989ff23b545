"""Disk space: free space, growth, forecasts."""
