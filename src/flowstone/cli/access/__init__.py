"""The commands of access rules and quotas: `flowstone acl` and `flowstone quota`."""
