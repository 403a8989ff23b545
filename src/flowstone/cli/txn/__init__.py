"""`flowstone txn`: transactions, their producers, and ending those that hang."""
