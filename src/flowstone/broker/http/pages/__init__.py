"""The pages of the HTTP port, one module per page."""
