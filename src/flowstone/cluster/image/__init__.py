"""The cluster's metadata as values: the image, the records it is made of, and replaying them."""
