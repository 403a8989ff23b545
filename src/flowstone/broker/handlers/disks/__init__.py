"""The APIs of log directories, one file each."""
