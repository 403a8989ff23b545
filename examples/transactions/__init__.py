"""Consume, transform, produce in transactions, one program for each client. docs/transactions.md explains them."""
