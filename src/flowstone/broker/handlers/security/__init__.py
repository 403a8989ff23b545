"""The APIs of logins and users, one file each."""
