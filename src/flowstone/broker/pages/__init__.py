"""The broker's pages of JSON: one module each."""
