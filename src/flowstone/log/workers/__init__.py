"""Worker processes for work that would block the broker's event loop: how they are started, called and throttled."""
