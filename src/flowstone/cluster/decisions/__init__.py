"""Pure decisions about the cluster: functions from an image and a request to metadata records."""
