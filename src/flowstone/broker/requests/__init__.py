"""What request handlers use: the request context, parked requests, partition lookup, admission of producers."""
