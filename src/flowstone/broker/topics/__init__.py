"""Topic administration: creation, descriptions, metadata changes, branches, restored topics."""
