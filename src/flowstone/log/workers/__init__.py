"""Processes beside the broker that do what would hold up its loop: how they are spoken to, and held back."""
