"""The HTTP port: listener, access checks, connections, routes and pages."""
