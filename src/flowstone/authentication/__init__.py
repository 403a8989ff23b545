"""Authentication without input and output: SASL mechanisms, credentials, and the names that certificates give."""
