"""`flowstone queue`: work on the records of a topic one by one."""
