"""The log of one partition: appending, reading, validation, producer state, leader epochs."""
