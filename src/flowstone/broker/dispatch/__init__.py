"""From a request frame to its handler and back: the registry of APIs, decoding, encoding, failures."""
