"""One partition's log: appending, reading, validation, producer state, leader epochs."""
